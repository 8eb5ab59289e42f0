"""Bridge and residual in one pass over blocks of slots, for runs without gradients (spec 4).

    K^ = (b_p + K_S A_p) + ((zeta_p + z W_p) + xi (W_xi W_p)),   V^ likewise

summed in the order in which `Compiler.forward(plain=True)` sums them. A block's vectors are gathered once, stay in cache, and are
written once, in the type that the target wants: beside the output only z and one block exist. The plain path spends most of its time
on the CPU in page faults of its full-length intermediates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acct.compiler.bridge import Bridge
from acct.compiler.grouped import UnitBlock, UnitGroups, of_units
from acct.compiler.residual import Residual, conditions
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
) -> tuple[Tensor, Tensor, Tensor]:
    """K^ before RoPE and V^ at every slot.

    Args:
        residual: None for the Bridge alone. groups: `UnitGroups.of(selection)`. dtype: of the result; None for the Bridge's own.
    Returns:
        keys, values [slot, dim] in the packed order, and the sum of all their numbers before rounding to `dtype`, a scalar: NaN or Inf
        tells of one that is not finite. Places of padding repeat real slots in it.
    """
    rows = source_rows(selection, states, bridge.geometry)
    own = bridge.key_map.dtype
    z, row = residual.trunk(states, selection) if residual is not None else (None, None)
    xi = conditions(selection, own) if residual is not None else None
    total = rows.new_zeros((), dtype=own)
    space = _Space(rows.device, own)
    kinds = (("key", states.keys_pre), ("value", states.values))
    shape = (len(rows), bridge.key_map.shape[-1])
    results = {name: stored.new_empty(shape, dtype=dtype or own) for name, stored in kinds}
    sources = {name: flat_rows(stored) for name, stored in kinds}
    for block in groups.blocks:
        where, place = rows[block.index].view(-1), block.index.view(-1)
        real = None if block.full else block.valid.view(-1).nonzero().flatten()  # padding is computed and not written
        read = space.rows("z", z, row[block.index].view(-1)) if z is not None and row is not None else None
        conditioned = xi[block.index] if xi is not None else None
        for name in results:
            vectors = space.rows("source", sources[name], where)
            made = space.affine("made", getattr(bridge, f"{name}_bias"), block, vectors, of_units(getattr(bridge, f"{name}_map"), block))
            if residual is not None and read is not None and conditioned is not None:
                readout = of_units(getattr(residual, f"{name}_readout"), block)
                correction = space.affine("correction", getattr(residual, f"{name}_bias"), block, read, readout)
                made += correction.baddbmm_(conditioned, residual.condition_map @ readout)
            total += made.sum()
            written = made.flatten(0, 1).to(results[name].dtype)
            if real is None:
                results[name].index_copy_(0, place, written)
            else:
                results[name].index_copy_(0, place[real], written.index_select(0, real))
    return results["key"], results["value"], total


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

    def affine(self, name: str, bias: Tensor, block: UnitBlock, x: Tensor, weights: Tensor) -> Tensor:
        """x W_p + b_p: [group, width, out]; x [group * width, in], weights [group, in, out], bias [unit, out]."""
        out = self.take(name, *block.index.shape, weights.shape[-1])
        return torch.baddbmm(of_units(bias, block)[:, None], x.view(*block.index.shape, x.shape[-1]), weights, out=out)
