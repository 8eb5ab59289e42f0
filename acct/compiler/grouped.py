"""Packed slots grouped by target unit, so that per-unit maps are a few batched matrix products (spec 4, paper F.2).

Units differ in how many slots they have, and the paper pads all of them to the longest. Here units of similar counts share one
padded block instead, so that at most about `waste` of the places are padding whatever the Allocator does; a unit without a slot
is in no block. Computed once for a selection and shared by the Bridge's keys, its values and the residual's readout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acct.selection import slots_by_unit
from acct.types import Selection

CPU_PLACES, DEVICE_PLACES = 1 << 12, 1 << 20
"""Most places of a block: on the CPU a block's vectors stay in cache and in memory that the allocator reuses; on an accelerator a block is
a launch."""


@dataclass(frozen=True)
class UnitBlock:
    """Some units, their slots padded to the longest of them.

    Attributes:
        units: int64 [group], ascending. every: whether these are all units, in order.
        index: int64 [group, width], the slot at each place; the unit's first slot at padding.
        valid: bool [group, width]. full: whether no place is padding.
        places: where the block lies in what `UnitGroups` holds of all places.
    """

    units: Tensor
    every: bool
    index: Tensor
    valid: Tensor
    full: bool
    places: slice


@dataclass(frozen=True)
class UnitGroups:
    """All slots of a selection by unit.

    Attributes:
        blocks: disjoint; together every unit that has a slot.
        index: int64 [place], valid: bool [place], those of all blocks, one block after the other.
        place: int64 [slot], where each slot lies there.
        counts: int64 [unit], slots of each unit in the whole batch.
    """

    blocks: tuple[UnitBlock, ...]
    index: Tensor
    valid: Tensor
    place: Tensor
    counts: Tensor

    @classmethod
    def of(cls, selection: Selection, waste: float = 0.25, largest: int | None = None) -> UnitGroups:
        """Group the slots of `selection`.

        Args:
            waste: units join a block while their count is at least (1 - waste) of its longest; 1 puts all units into one block.
            largest: most places of a block, so that long contexts need no huge intermediate; one unit may exceed it. None: CPU_PLACES on
                the CPU, DEVICE_PLACES elsewhere.
        """
        if largest is None:
            largest = CPU_PLACES if selection.positions.device.type == "cpu" else DEVICE_PLACES
        counts = selection.counts.sum(0)  # [unit]
        device, order, starts = counts.device, slots_by_unit(selection), counts.cumsum(0) - counts
        by_unit = counts.tolist()
        groups = list(_blocks(by_unit, waste, largest))
        members = torch.tensor([unit for units, _ in groups for unit in units], dtype=torch.int64, device=device)
        widths = torch.tensor([width for units, width in groups for _ in units], dtype=torch.int64, device=device)
        bases = widths.cumsum(0) - widths  # first place of each member
        own = torch.repeat_interleave(torch.arange(len(members), device=device), widths)  # the member at each place
        along = torch.arange(len(own), device=device) - bases[own]
        valid = along < counts[members][own]
        index = order[starts[members][own] + along.masked_fill_(~valid, 0)]
        base = torch.zeros_like(counts).index_copy_(0, members, bases)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=device) + torch.repeat_interleave(base - starts, counts)
        blocks, first, member = [], 0, 0
        for units, width in groups:
            shape, places = (len(units), width), slice(first, first + len(units) * width)
            every, full = len(units) == selection.units, all(by_unit[unit] == width for unit in units)
            block_units = members[member : member + len(units)]
            blocks.append(UnitBlock(block_units, every, index[places].view(shape), valid[places].view(shape), full, places))
            first, member = places.stop, member + len(units)
        return cls(tuple(blocks), index, valid, place, counts)

    def linear(self, terms: Sequence[tuple[Tensor, Tensor | None, Tensor]], bias: Tensor | None = None) -> Tensor:
        """Sum over terms of x @ W_p, and b_p, at every slot of every unit p.

        Args:
            terms: (x, row, weight): x [row, in]; row int64 [slot], the row of x that each slot reads, or None when x is [slot, in];
                weight [unit, in, out]. x must be finite; rows and units may repeat and be missing.
            bias: [unit, out].
        Returns:
            [slot, out] in the packed order.
        """
        results = []
        rows = [self.index if row is None else row.index_select(0, self.index) for _, row, _ in terms]
        for block in self.blocks:
            value = None if bias is None else of_units(bias, block)[:, None]  # [group, 1, out]
            for (x, _, weight), where in zip(terms, rows):
                grouped = x.index_select(0, where[block.places]).view(*block.index.shape, x.shape[-1])  # [group, width, in]
                weights = of_units(weight, block)
                value = torch.bmm(grouped, weights) if value is None else torch.baddbmm(value, grouped, weights)
            assert value is not None, "a grouped map needs a term"
            results.append(value.flatten(0, 1))
        if not results:
            return terms[0][2].new_zeros(0, terms[0][2].shape[-1])
        return torch.cat(results).index_select(0, self.place)


def of_units(per_unit: Tensor, block: UnitBlock) -> Tensor:
    """The block's units of a tensor [unit, ...]."""
    return per_unit if block.every else per_unit.index_select(0, block.units)


def _blocks(counts: list[int], waste: float, largest: int) -> Iterator[tuple[list[int], int]]:
    """Units of each block, ascending, and the block's width."""
    members: list[int] = []
    width = 0
    for unit in sorted((p for p, count in enumerate(counts) if count), key=lambda p: -counts[p]):
        if members and (counts[unit] < (1 - waste) * width or (len(members) + 1) * width > largest):
            yield sorted(members), width
            members = []
        if not members:
            width = counts[unit]
        members.append(unit)
    if members:
        yield sorted(members), width
