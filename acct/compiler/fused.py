"""Bridge and residual in one pass over blocks of slots, for runs without gradients (spec 4).

    K^ = (b_p + K_S A_p) + ((zeta_p + z W_p) + xi (W_xi W_p)),   V^ likewise

summed in the order in which `Compiler.forward(plain=True)` sums them. A block's vectors are gathered once, stay in cache, and are
written once, in the type that the target wants: beside the output only z and one block exist. The plain path spends most of its time
on the CPU in page faults of its full-length intermediates.
"""

from __future__ import annotations

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
    own, slots = bridge.key_map.dtype, len(rows)
    z, row = residual.trunk(states, selection) if residual is not None else (None, None)
    xi = conditions(selection, own) if residual is not None else None
    total = rows.new_zeros((), dtype=own)
    results = []
    for name, stored in (("key", states.keys_pre), ("value", states.values)):
        source = flat_rows(stored)
        result = stored.new_empty(slots + 1, bridge.key_map.shape[-1], dtype=dtype or own)  # the last row takes what padding writes
        for block in groups.blocks:
            vectors = source.index_select(0, rows[block.index].view(-1)).to(own)
            made = _affine(getattr(bridge, f"{name}_bias"), block, vectors, of_units(getattr(bridge, f"{name}_map"), block))
            if residual is not None and z is not None and xi is not None and row is not None:
                readout = of_units(getattr(residual, f"{name}_readout"), block)
                correction = _affine(getattr(residual, f"{name}_bias"), block, z.index_select(0, row[block.index].view(-1)), readout)
                correction.baddbmm_(xi[block.index], residual.condition_map @ readout)
                made += correction
            total += made.sum()
            place = block.index.masked_fill(~block.valid, slots).view(-1)
            result.index_copy_(0, place, made.flatten(0, 1).to(result.dtype))
        results.append(result[:slots])
    return results[0], results[1], total


def _affine(bias: Tensor, block: UnitBlock, x: Tensor, weights: Tensor) -> Tensor:
    """x W_p + b_p: [group, width, out]; x [group * width, in], weights [group, in, out], bias [unit, out]."""
    return torch.baddbmm(of_units(bias, block)[:, None], x.view(*block.index.shape, x.shape[-1]), weights)
