"""Every slot's key or value in one kernel: gather, Bridge, readout, conditions, bias, rotation, write (spec 4).

    K^ = b_p + zeta_p + K_S A_p + z W_p + xi (W_xi W_p),   written as K^ cos(i w) + half(K^) sin(i w);   V^ likewise, not rotated

A program has some slots of one unit. It reads their source vectors and their rows of z where these lie, multiplies them with the unit's
maps step by step, and writes each result once, in the target's type at its place in the packed order: no gathered copy, no padding and no
unrotated copy exists. The two halves of a vector are two sums, so that the rotation needs no exchange between them. Sums are float32 and
are rounded once, after the rotation; products of float32 numbers follow `torch.set_float32_matmul_precision`, as PyTorch's own do. The
plain path rounds before it rotates and after each product of the rotation: in bf16 the two differ by that rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from acct.compiler.bridge import Bridge
from acct.compiler.fused import unit_maps
from acct.compiler.residual import CONDITIONS, Residual, conditions
from acct.kernels import interpreted
from acct.models.rotary import Rotary
from acct.selection import batch_index, flat_rows, slots_by_unit, source_rows
from acct.types import Selection, SourceStates

BLOCK_SLOTS = 64
"""Slots of one program."""
BLOCK_INNER = 32
"""Inner width of one step of a product."""
WARPS = 8
"""Of one program; with four of them the two sums and the rotation do not fit into registers (compiled for sm_90)."""


@triton.jit
def _add_product(
    lower, upper, vectors, rows, live, maps, unit, INNER: tl.constexpr, DIM: tl.constexpr, HALF_PAD: tl.constexpr,
    STEP: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The two halves plus vectors[rows] @ maps[unit], vectors [row, INNER], maps [unit, INNER, DIM]."""
    column = tl.arange(0, HALF_PAD)
    real = column < DIM // 2
    for start in range(0, INNER, STEP):
        inner = start + tl.arange(0, STEP)
        known = inner < INNER
        x = tl.load(vectors + rows[:, None] * INNER + inner[None, :], mask=live[:, None] & known[None, :], other=0.0)
        x = x.to(maps.dtype.element_ty).to(OPERAND)
        where = (unit * INNER + inner)[:, None] * DIM + column[None, :]
        inside = known[:, None] & real[None, :]
        lower = tl.dot(x, tl.load(maps + where, mask=inside, other=0.0).to(OPERAND), lower, input_precision=PRECISION)
        upper = tl.dot(x, tl.load(maps + where + DIM // 2, mask=inside, other=0.0).to(OPERAND), upper, input_precision=PRECISION)
    return lower, upper


@triton.jit
def _map_slots(
    order, tile_unit, tile_first, tile_stop, source, where, bridge, z, read, readout, xi, condition, bias, cos, sin, turn, result, total,
    units, INNER: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr, HALF_PAD: tl.constexpr, CONDITIONS: tl.constexpr,
    RESIDUAL: tl.constexpr, ROTATE: tl.constexpr, SLOTS: tl.constexpr, STEP: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    unit = tl.load(tile_unit + tile)
    if unit >= units:  # a tile beyond the last unit's
        return
    place = tl.load(tile_first + tile) + tl.arange(0, SLOTS)
    live = place < tl.load(tile_stop + tile)
    slot = tl.load(order + place, mask=live, other=0)
    column = tl.arange(0, HALF_PAD)
    real = column < DIM // 2
    low = tl.load(bias + unit * DIM + column, mask=real, other=0.0).to(tl.float32)
    high = tl.load(bias + unit * DIM + DIM // 2 + column, mask=real, other=0.0).to(tl.float32)
    lower = tl.zeros([SLOTS, HALF_PAD], tl.float32) + low[None, :]
    upper = tl.zeros([SLOTS, HALF_PAD], tl.float32) + high[None, :]
    rows = tl.load(where + slot, mask=live, other=0)
    lower, upper = _add_product(lower, upper, source, rows, live, bridge, unit, INNER, DIM, HALF_PAD, STEP, OPERAND, PRECISION)
    if RESIDUAL:
        rows = tl.load(read + slot, mask=live, other=0)
        lower, upper = _add_product(lower, upper, z, rows, live, readout, unit, WIDTH, DIM, HALF_PAD, STEP, OPERAND, PRECISION)
        for c in tl.static_range(CONDITIONS):
            known = tl.load(xi + slot * CONDITIONS + c, mask=live, other=0.0).to(tl.float32)
            at = condition + (unit * CONDITIONS + c) * DIM + column
            lower += known[:, None] * tl.load(at, mask=real, other=0.0).to(tl.float32)[None, :]
            upper += known[:, None] * tl.load(at + DIM // 2, mask=real, other=0.0).to(tl.float32)[None, :]
    inside = live[:, None] & real[None, :]
    tl.store(total + tile, tl.sum(tl.where(inside, lower + upper, 0.0)))
    if ROTATE:
        angle = tl.load(turn + slot, mask=live, other=0)[:, None] * DIM + column[None, :]
        cos_low = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
        sin_low = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
        cos_high = tl.load(cos + angle + DIM // 2, mask=inside, other=0.0).to(tl.float32)
        sin_high = tl.load(sin + angle + DIM // 2, mask=inside, other=0.0).to(tl.float32)
        turned = lower * cos_low - upper * sin_low
        upper = upper * cos_high + lower * sin_high
        lower = turned
    at = result + slot[:, None] * DIM + column[None, :]
    tl.store(at, lower.to(result.dtype.element_ty), mask=inside)
    tl.store(at + DIM // 2, upper.to(result.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Tiles:
    """All slots cut into tiles of at most `size` slots of one unit, without asking the device for a number.

    Attributes:
        order: int64 [slot], slots by unit. unit, first, stop: int64 [tile], a tile has order[first:stop] at most; unit is P, the number of
            units, in the surplus tiles at the end.
    """

    order: Tensor
    unit: Tensor
    first: Tensor
    stop: Tensor

    @classmethod
    def of(cls, selection: Selection, size: int) -> Tiles:
        """Cut a selection; units without a slot have no tile."""
        counts, order = selection.counts.sum(0), slots_by_unit(selection)
        tiles = (counts + size - 1) // size
        ends, stops = tiles.cumsum(0), counts.cumsum(0)
        number = torch.arange(len(order) // size + selection.units, device=counts.device)  # never fewer than there are
        unit = torch.searchsorted(ends, number, right=True)
        own = unit.clamp(max=selection.units - 1)
        first = (stops - counts)[own] + (number - (ends - tiles)[own]) * size
        return cls(order, unit, first, stops[own])


def rotation_table(rotary: Rotary, selection: Selection, dtype: torch.dtype, places: int) -> tuple[Tensor, Tensor, Tensor]:
    """cos and sin [row, dim] in the target's type, attention scaling included, and the row of each slot, int64 [slot].

    One row for each of the `places` positions; one for each slot where frequencies depend on the length of a context ("dynamic").
    """
    positions = selection.positions
    if rotary.kind == "dynamic":
        totals = selection.context_lengths[batch_index(selection)]
        return *rotary.cos_sin(positions, dtype, totals), torch.arange(len(positions), device=positions.device)
    return *rotary.cos_sin(torch.arange(places, device=positions.device), dtype), positions


@torch.no_grad()
def compile_slots(
    bridge: Bridge,
    residual: Residual | None,
    states: SourceStates,
    selection: Selection,
    dtype: torch.dtype | None = None,
    rotary: Rotary | None = None,
    block_slots: int = BLOCK_SLOTS,
    block_inner: int = BLOCK_INNER,
) -> tuple[Tensor, Tensor, Tensor]:
    """K^ and V^ at every slot, as `acct.compiler.fused.compile_slots`.

    Args:
        bridge: with one source vector for a slot. residual: None for the Bridge alone. dtype: of the result; None for the Bridge's own.
        rotary: of the target, for keys rotated to their positions; None leaves them before RoPE.
        block_slots, block_inner: slots and inner width of a tile, powers of two from 16.
    Returns:
        keys, values [slot, dim] in the packed order, and the sum of all their numbers before rotation and rounding, a float32 scalar: NaN
        or Inf tells of one that is not finite.
    """
    weight, rows = bridge.key_map, source_rows(selection, states, bridge.geometry, bridge.reads).view(-1)
    (units, inner, dim), slots, dtype = weight.shape, len(rows), dtype or weight.dtype
    tiles = Tiles.of(selection, block_slots)
    total = torch.zeros(2, len(tiles.unit), device=rows.device)
    results = [torch.empty(slots, dim, dtype=dtype, device=rows.device) for _ in range(2)]
    if not slots:
        return results[0], results[1], total.sum()
    z = read = xi = cos = sin = turn = None
    if residual is not None:
        z, read = residual.trunk(states, selection)
        z, xi = z.contiguous(), conditions(selection, weight.dtype)
    if rotary is not None:
        cos, sin, turn = rotation_table(rotary, selection, dtype, states.context_ids.shape[1])
        cos, sin = cos.contiguous(), sin.contiguous()
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    # The interpreter multiplies bf16 by its bits; products of bf16 numbers are exact in float32, so that widening them changes nothing.
    operand = tl.float32 if interpreted() or weight.dtype == torch.float32 else getattr(tl, str(weight.dtype).removeprefix("torch."))
    with torch.cuda.device_of(weight):  # a launch goes to the current device; nothing changes for the CPU
        for kind, (name, stored) in enumerate((("key", states.keys_pre), ("value", states.values))):
            maps, bias = unit_maps(bridge, residual, name)
            own, readout, condition = (part.contiguous() for part in maps) if residual is not None else (maps[0].contiguous(), None, None)
            _map_slots[(len(tiles.unit),)](
                tiles.order, tiles.unit, tiles.first, tiles.stop, flat_rows(stored), rows, own, z, read, readout, xi, condition,
                bias.contiguous(), cos, sin, turn, results[kind], total[kind],
                units, INNER=inner, WIDTH=0 if z is None else z.shape[-1], DIM=dim, HALF_PAD=max(triton.next_power_of_2(dim // 2), 16),
                CONDITIONS=CONDITIONS, RESIDUAL=residual is not None, ROTATE=rotary is not None and name == "key",
                SLOTS=block_slots, STEP=block_inner, OPERAND=operand, PRECISION=precision, num_warps=WARPS,
            )  # fmt: skip
    return results[0], results[1], total.sum()
