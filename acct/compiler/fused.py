"""Bridge and residual in one pass over blocks of slots, for runs without gradients (spec 4).

    K^ = (b_p + K_S A_p) + ((zeta_p + z W_p) + xi (W_xi W_p)),   V^ likewise

each term added to what is there already, where `Compiler.forward(plain=True)` adds the two brackets: equal to rounding. A block's
vectors are gathered once, stay in cache, and are written once, in the type that the target wants: beside the output only z and one
block exist. The plain path spends most of its time on the CPU in page faults of its full-length intermediates. What is padding within
a block is computed too and not written.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acct.compiler.bridge import Bridge
from acct.compiler.grouped import UnitGroups, of_units
from acct.compiler.residual import Residual, conditions
from acct.models.rotary import Rotary, turn_
from acct.selection import flat_rows, source_rows
from acct.types import Selection, SourceStates


@torch.no_grad()
def compile_slots(
    bridge: Bridge,
    residual: Residual | None,
    states: SourceStates,
    selection: Selection,
    groups: UnitGroups,
    dtype: torch.dtype | None = None,
    rotary: Rotary | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """K^ and V^ at every slot.

    Args:
        residual: None for the Bridge alone. groups: `UnitGroups.of(selection)`. dtype: of the result; None for the Bridge's own.
        rotary: of the target, for keys rotated to their positions while their block is in cache, in `dtype`, bit for bit as afterwards;
            None, and "dynamic" RoPE (see `fuses`), leave them before RoPE.
    Returns:
        keys, values [slot, dim] in the packed order, and the sum of all their numbers before rounding to `dtype`, a scalar: NaN or Inf
        tells of one that is not finite. Places of padding repeat real slots in it.
    """
    rows = source_rows(selection, states, bridge.geometry, bridge.reads)
    own, slots = bridge.key_map.dtype, len(rows)
    total = rows.new_zeros((), dtype=own)
    space, turned = _Space(rows.device, own), _Space(rows.device, dtype or own)
    where = rows.index_select(0, groups.index)  # [place, read]
    reads: Tensor | None = None
    if residual is not None:
        z, row = residual.trunk(states, selection)
        if row is not None:
            reads = row.index_select(0, groups.index)
        xi = conditions(selection, own).index_select(0, groups.index)
    table = rotary.table(states.context_ids.shape[1], dtype or own, rows.device) if rotary is not None and fuses(rotary) else None
    kinds = []
    for name, stored in (("key", states.keys_pre), ("value", states.values)):
        maps, bias = unit_maps(bridge, residual, name)
        result = stored.new_empty(slots, bridge.key_map.shape[-1], dtype=dtype or own)
        kinds.append((flat_rows(stored), maps, bias, result, table if name == "key" else None))
    for block in groups.blocks:
        shape, places = block.index.shape, block.places
        real = None if block.full else block.valid.view(-1).nonzero().flatten()
        target = groups.index[places] if real is None else groups.index[places].index_select(0, real)
        inputs = []
        if residual is not None and reads is not None:
            inputs = [space.rows("z", z, reads[places]).view(*shape, -1), xi[places].view(*shape, -1)]
        for source, maps, bias, result, angles in kinds:
            vectors = space.rows("source", source, where[places].view(-1)).view(*shape, -1)
            made = space.take("made", *shape, result.shape[-1])
            torch.baddbmm(of_units(bias, block)[:, None], vectors, of_units(maps[0], block), out=made)
            for x, weights in zip(inputs, maps[1:]):
                made.baddbmm_(x, of_units(weights, block))
            total += made.sum()
            written = made.flatten(0, 1) if real is None else space.rows("written", made.flatten(0, 1), real)
            written = written.to(result.dtype)
            if angles is not None:
                turn = selection.positions.index_select(0, target)
                written = turn_(written, *(turned.rows(part, table, turn) for part, table in zip(("cos", "sin"), angles)))
            result.index_copy_(0, target, written)
    return kinds[0][3], kinds[1][3], total


def fuses(rotary: Rotary) -> bool:
    """Whether one table of cos and sin serves every example."""
    return rotary.kind != "dynamic"


def unit_maps(bridge: Bridge, residual: Residual | None, name: str) -> tuple[list[Tensor], Tensor]:
    """What a slot's "key" or "value" is made with: A_p, and with a residual W_p and W_xi W_p, [unit, in, dim]; b_p + zeta_p [unit, dim]."""
    bridge_map, bias = getattr(bridge, f"{name}_map"), getattr(bridge, f"{name}_bias")
    if residual is None:
        return [bridge_map], bias
    readout = getattr(residual, f"{name}_readout")
    return [bridge_map, readout, residual.condition_map @ readout], bias + getattr(residual, f"{name}_bias")


class _Space:
    """Memory for one block, used again by the next: on the CPU fresh pages cost about as much as the arithmetic."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.options = {"device": device, "dtype": dtype}
        self.kept: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Uninitialised numbers of a shape; what was taken under the same name before is overwritten."""
        count = math.prod(shape)
        if name not in self.kept or self.kept[name].numel() < count:
            self.kept[name] = torch.empty(count, **self.options)
        return self.kept[name][:count].view(shape)

    def rows(self, name: str, x: Tensor, index: Tensor) -> Tensor:
        """x[index], x [row, in]; in the space's type."""
        if x.dtype != self.options["dtype"]:
            return x.index_select(0, index).to(self.options["dtype"])
        return torch.index_select(x, 0, index, out=self.take(name, len(index), x.shape[-1]))
