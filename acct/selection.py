"""Rankings, counts and the tail become a Selection; packed, padded, per-row and union views of it (spec 3, paper C.1, F.2).

I_p = the top `count` positions of unit p's ranking, and the tail [N - t, N). Slots are packed in the order layer, batch,
head, ascending position; a *row* below is one (layer, batch, head) of that order. Nothing here loops over units or examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from acct.errors import SelectionError
from acct.geometry import PairGeometry
from acct.types import NativeStates, Selection, SourceStates

if TYPE_CHECKING:
    from acct.allocator.budget import BudgetRule


def select(order: Tensor, prefix_counts: Tensor, context_lengths: Tensor, tails: Tensor, layers: int, heads: int) -> Selection:
    """Keep the first `prefix_counts` positions of every unit's ranking, and the tail.

    Args:
        order: int64 [batch, unit, context], context positions, best first; only the first n = N - t entries of a row are read.
        prefix_counts: int64 [batch, unit], ranked slots of each unit, 0 to n, the tail not counted.
        context_lengths, tails: int64 [batch], N and t.
        layers, heads: L_T and H_T; unit = layer * heads + head.
    Returns:
        A Selection that satisfies `validate`, on the device of `order`.
    Raises:
        SelectionError: shapes that do not fit, a count outside [0, n], or a ranking that is no permutation of the prefix.
    """
    batch, units, context = order.shape
    if units != layers * heads or tuple(prefix_counts.shape) != (batch, units):
        raise SelectionError(
            f"an order of shape {tuple(order.shape)} and counts of shape {tuple(prefix_counts.shape)} do not fit {layers} layers x "
            f"{heads} heads: give [batch, {layers * heads}, context] and [batch, {layers * heads}]."
        )
    lengths, tails, counts = (t.to(device=order.device, dtype=torch.int64) for t in (context_lengths, tails, prefix_counts))
    prefix = lengths - tails  # [batch]
    if bool((prefix < 0).any()) or bool((lengths > context).any()):
        raise SelectionError(
            f"tails {tails.tolist()} and context lengths {lengths.tolist()} must fit 0 <= tail <= length <= {context}, the order's width."
        )
    if bool((counts < 0).any()) or bool((counts > prefix[:, None]).any()):
        row, unit = ((counts < 0) | (counts > prefix[:, None])).nonzero()[0].tolist()
        raise SelectionError(
            f"unit (layer {unit // heads}, head {unit % heads}) of example {row} has a count of {int(counts[row, unit])} ranked positions; "
            f"its prefix holds {int(prefix[row])}. Take counts from the Allocator at this context length."
        )
    place = torch.arange(context, device=order.device)
    ranked_place = place < prefix[:, None, None]  # [batch, 1, context]
    slots = torch.where(ranked_place, order, order.new_full((), context))  # entries that are not read go to one scrap column
    ranks = order.new_full((batch, units, context + 1), context)
    ranks = ranks.scatter(2, slots, place.expand_as(order))[..., :context]  # [batch, unit, context], `context` where unranked
    if bool((ranks.masked_fill(~ranked_place, 0) >= prefix[:, None, None].clamp(min=1)).any()):
        raise SelectionError("an order does not list every prefix position once. Build it with `rank_prefix` at the same prefix lengths.")
    tail = (place >= prefix[:, None]) & (place < lengths[:, None])  # [batch, context]
    keep = (ranked_place & (ranks < counts[..., None])) | tail[:, None]
    by_layer = keep.view(batch, layers, heads, context).transpose(0, 1)
    layer, row, head, positions = by_layer.nonzero(as_tuple=True)
    is_tail = tail[row, positions]
    kept_ranks = ranks[row, layer * heads + head, positions].masked_fill(is_tail, 0)
    return Selection(layers, heads, lengths, tails, counts + tails[:, None], positions, kept_ranks, is_tail)


def full_selection(context_lengths: Tensor, layers: int, heads: int, tails: Tensor | None = None) -> Selection:
    """Every position of every unit (rho = 1: no Cartographer, no Allocator). Prefix ranks are the positions; no tail unless given."""
    lengths = context_lengths.to(torch.int64)
    tails = torch.zeros_like(lengths) if tails is None else tails.to(lengths)
    order = torch.arange(int(lengths.max()), device=lengths.device).expand(len(lengths), layers * heads, -1)
    counts = (lengths - tails)[:, None].expand(-1, layers * heads)
    return select(order, counts, lengths, tails, layers, heads)


def uniform_counts(context_lengths: Tensor, rule: BudgetRule, units: int) -> Tensor:
    """k - t ranked slots for every unit: int64 [batch, unit] (Table 3's Uniform, and the cutoff of the scoring pairs)."""
    counts = rule.mean_capacities(context_lengths) - rule.tails(context_lengths)
    return counts[:, None].expand(-1, units).contiguous()


def row_counts(selection: Selection) -> Tensor:
    """Slots of each row: int64 [layer, batch, head]."""
    return selection.counts.view(selection.batch, selection.layers, selection.heads).transpose(0, 1)


def _starts(counts: Tensor) -> Tensor:
    """First slot of each row, given slots of each row in packed order; the same shape."""
    flat = counts.reshape(-1)
    return (flat.cumsum(0) - flat).view(counts.shape)


def _ranges(starts: Tensor, counts: Tensor) -> Tensor:
    """The concatenation of [start, start + count) over all rows: int64 [slot]."""
    starts, counts = starts.reshape(-1), counts.reshape(-1)
    shift = torch.repeat_interleave(starts - _starts(counts), counts)
    return torch.arange(len(shift), device=shift.device) + shift


def row_index(selection: Selection) -> Tensor:
    """Row of each slot in packed order, (layer * batch + example) * heads + head: int64 [slot]."""
    counts = row_counts(selection).reshape(-1)
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


def batch_index(selection: Selection) -> Tensor:
    """Example of each slot: int64 [slot]."""
    return row_index(selection) // selection.heads % selection.batch


def unit_index(selection: Selection) -> Tensor:
    """Target unit of each slot: int64 [slot]."""
    rows = row_index(selection)
    return rows // (selection.heads * selection.batch) * selection.heads + rows % selection.heads


def slots_by_unit(selection: Selection) -> Tensor:
    """Slots in the order of their units, examples in order within a unit: int64 [slot]; the identity for one example."""
    counts = row_counts(selection)
    by_unit = [part.transpose(1, 2) for part in (_starts(counts), counts)]  # [layer, head, batch]
    return _ranges(*by_unit)


def layer_slice(selection: Selection, layer: int) -> slice:
    """The slots of one target layer, contiguous in the packing."""
    per_layer = row_counts(selection).sum(dim=(1, 2))
    start = int(per_layer[:layer].sum())
    return slice(start, start + int(per_layer[layer]))


def padded_index(selection: Selection, layer: int) -> tuple[Tensor, Tensor]:
    """Where one layer's slots lie when its heads are padded to the longest.

    Returns:
        index: int64 [batch, head, S], into the slots of `layer_slice(selection, layer)`; 0 at padding. S is the layer's largest count.
        valid: bool [batch, head, S].
    """
    counts = row_counts(selection)[layer]  # [batch, head]
    width = int(counts.max()) if counts.numel() else 0
    place = torch.arange(width, device=counts.device)
    valid = place < counts[..., None]
    return (_starts(counts)[..., None] + place).masked_fill(~valid, 0), valid


@dataclass(frozen=True)
class PositionUnion:
    """U = union_p I_p of every example, packed by example, positions ascending.

    Attributes:
        positions: int64 [entry]. batch_index: int64 [entry], example of each entry. counts: int64 [batch], |U|.
        place: int64 [entry], index of the entry within its example. slot_entry: int64 [slot], the entry that each slot uses.
    """

    positions: Tensor
    batch_index: Tensor
    counts: Tensor
    place: Tensor
    slot_entry: Tensor


def union(selection: Selection) -> PositionUnion:
    """The positions that any unit keeps, once each, and each slot's index into them."""
    width = int(selection.context_lengths.max()) if selection.batch else 0
    keys = batch_index(selection) * width + selection.positions  # [slot]
    present = torch.zeros(selection.batch * width, dtype=torch.bool, device=keys.device)
    present[keys] = True
    entry = present.cumsum(0) - 1
    example, positions = present.view(selection.batch, width).nonzero(as_tuple=True)
    counts = present.view(selection.batch, width).sum(dim=1)
    place = torch.arange(len(positions), device=keys.device) - _starts(counts)[example]
    return PositionUnion(positions, example, counts, place, entry[keys])


def gather_native(selection: Selection, native: NativeStates) -> tuple[Tensor, Tensor]:
    """Native pre-RoPE keys and values at the slots: two [slot, dim]."""
    if native.context_keys_pre.shape[:2] != selection.counts.shape:
        raise SelectionError(
            f"native states of {tuple(native.context_keys_pre.shape[:2])} [batch, unit] do not fit a selection of "
            f"{tuple(selection.counts.shape)}. Read them from the same batch."
        )
    where = (batch_index(selection), unit_index(selection), selection.positions)
    return native.context_keys_pre[where], native.context_values[where]


def gather_source(
    selection: Selection, states: SourceStates, geometry: PairGeometry, reads: Sequence[Sequence[int]] | None = None
) -> tuple[Tensor, Tensor]:
    """Source pre-RoPE keys and values at every slot, those of a unit's reads side by side: two [slot, read * source dim] (spec 4).

    Args:
        reads: see `source_rows`; by default head pi_H of layer pi_L alone.
    """
    rows = source_rows(selection, states, geometry, reads)
    keys = flat_rows(states.keys_pre).index_select(0, rows.view(-1)).view(len(rows), -1)
    if states.values is states.keys_pre:  # one vector for both
        return keys, keys
    return keys, flat_rows(states.values).index_select(0, rows.view(-1)).view(len(rows), -1)


def source_rows(selection: Selection, states: SourceStates, geometry: PairGeometry, reads: Sequence[Sequence[int]] | None = None) -> Tensor:
    """Rows of `flat_rows(states.keys_pre)`, and of the values', that each slot reads: int64 [slot, read].

    Args:
        reads: for every unit its source vectors [layer * head], as `PairGeometry.source_reads` gives them; None: (pi_L, pi_H).
    Raises:
        SelectionError: states of another batch or pair, or keys and values that lie in memory in two ways.
    """
    if states.batch != selection.batch or geometry.units != selection.units:
        raise SelectionError(
            f"source states of {states.batch} examples and a pair of {geometry.units} units do not fit a selection of {selection.batch} "
            f"examples and {selection.units} units."
        )
    strides = _row_strides(states.keys_pre)
    if strides != _row_strides(states.values):
        raise SelectionError("source keys and values must lie in memory alike; make both contiguous.")
    vectors = torch.tensor(geometry.source_reads() if reads is None else reads, device=selection.counts.device)  # [unit, read]
    layer, head = vectors // geometry.source.kv_heads, vectors % geometry.source.kv_heads
    by_unit = (layer * strides[1] + head * strides[2]).view(selection.layers, 1, selection.heads, -1)
    example = torch.arange(selection.batch, device=layer.device).view(1, -1, 1, 1) * strides[0]
    first = (by_unit + example).flatten(0, 2)  # [layer * batch * head, read], of each row of the packed order
    at = selection.positions * strides[3]
    return torch.repeat_interleave(first, row_counts(selection).reshape(-1), dim=0) + at[:, None]


def flat_rows(states: Tensor) -> Tensor:
    """states [batch, layer, head, context, dim] as vectors [row, dim], a view wherever whole vectors lie one after the other."""
    dim = states.shape[-1]
    if not _rows_lie_whole(states):
        return states.reshape(-1, dim)
    last = sum((size - 1) * stride for size, stride in zip(states.shape[:-1], states.stride()[:-1])) // dim
    return states.as_strided((last + 1 if states.numel() else 0, dim), (dim, 1))


def _rows_lie_whole(states: Tensor) -> bool:
    return states.stride(-1) == 1 and all(stride % states.shape[-1] == 0 for stride in states.stride()[:-1])


def _row_strides(states: Tensor) -> tuple[int, ...]:
    """Strides of `flat_rows` in rows, for batch, layer, head and context."""
    if _rows_lie_whole(states):
        return tuple(stride // states.shape[-1] for stride in states.stride()[:-1])
    _, layers, heads, context, _ = states.shape
    return (layers * heads * context, heads * context, context, 1)


def slots_of_rows(selection: Selection, index: Tensor | Sequence[int]) -> Tensor:
    """Slots of the chosen examples in the packed order of `rows(selection, index)`: int64 [slot']; gathers keys and values alike."""
    index = torch.as_tensor(index, dtype=torch.int64, device=selection.counts.device)
    counts = row_counts(selection)
    return _ranges(_starts(counts)[:, index], counts[:, index])


def rows(selection: Selection, index: Tensor | Sequence[int]) -> Selection:
    """The selection of the examples `index` (any order, repeats allowed)."""
    index = torch.as_tensor(index, dtype=torch.int64, device=selection.counts.device)
    slots = slots_of_rows(selection, index)
    return Selection(
        selection.layers,
        selection.heads,
        selection.context_lengths[index],
        selection.tails[index],
        selection.counts[index],
        selection.positions[slots],
        selection.ranks[slots],
        selection.is_tail[slots],
    )


def split(selection: Selection) -> list[Selection]:
    """One selection of batch 1 for each example, to be stored apart."""
    return [rows(selection, [example]) for example in range(selection.batch)]


def concatenate(selections: Sequence[Selection]) -> Selection:
    """One batch of several selections over the same units; the inverse of `split`."""
    if not selections:
        raise SelectionError("no selections to concatenate: give at least one.")
    layers, heads = selections[0].layers, selections[0].heads
    for other in selections:
        if (other.layers, other.heads) != (layers, heads):
            raise SelectionError(f"cannot batch selections of {layers} x {heads} and {other.layers} x {other.heads} [layer, head] units.")
    sizes = torch.tensor([len(one.positions) for one in selections])
    offsets = (sizes.cumsum(0) - sizes).tolist()
    starts = torch.cat([_starts(row_counts(one)) + offset for one, offset in zip(selections, offsets)], dim=1)  # [layer, batch, head]
    slots = _ranges(starts, torch.cat([row_counts(one) for one in selections], dim=1))
    joined = {name: torch.cat([getattr(one, name) for one in selections]) for name in ("context_lengths", "tails", "counts")}
    packed = {name: torch.cat([getattr(one, name) for one in selections])[slots] for name in ("positions", "ranks", "is_tail")}
    return Selection(layers, heads, **joined, **packed)


def to_device(selection: Selection, device: torch.device | str) -> Selection:
    """The same selection with its tensors on `device`."""
    moved: Mapping[str, Tensor] = {name: value.to(device) for name, value in vars(selection).items() if isinstance(value, Tensor)}
    return Selection(selection.layers, selection.heads, **moved)


def validate(selection: Selection, counts: Tensor | None = None, examples: Sequence[str] | None = None) -> None:
    """Check every invariant of a Selection.

    Args:
        counts: int64 [batch, unit], what the Allocator gave (tail included), to compare with; None compares with the selection's own.
        examples: a name of each example for the message; None names them by row.
    Raises:
        SelectionError: naming the unit and the example, what was expected and what came.
    """
    batch, heads = selection.batch, selection.heads
    lengths, tails = selection.context_lengths, selection.tails
    if selection.counts.shape != (len(lengths), selection.units) or len(tails) != batch:
        raise SelectionError(f"counts have shape {tuple(selection.counts.shape)}; expected [{len(lengths)}, {selection.units}].")
    slots = int(selection.counts.sum())
    for name in ("positions", "ranks", "is_tail"):
        if len(getattr(selection, name)) != slots:
            raise SelectionError(f"{name} has {len(getattr(selection, name))} slots; the counts sum to {slots}.")
    if bool(((tails < 0) | (tails > lengths)).any()):
        raise SelectionError(f"tails {tails.tolist()} must lie in 0..N of the context lengths {lengths.tolist()}.")

    def unit_name(row: int, unit: int) -> str:
        return f"unit (layer {unit // heads}, head {unit % heads}) of {examples[row] if examples else f'example {row}'}"

    expected = selection.counts if counts is None else counts
    if bool((selection.counts != expected).any()):
        row, unit = (selection.counts != expected).nonzero()[0].tolist()
        given, tail = int(expected[row, unit]), int(tails[row])
        raise SelectionError(
            f"{unit_name(row, unit)} keeps {int(selection.counts[row, unit])} positions; "
            f"the Allocator gave {given} ({given - tail} ranked + {tail} tail)."
        )
    example, unit, row = batch_index(selection), unit_index(selection), row_index(selection)
    positions, length, tail = selection.positions, lengths[example], tails[example]
    in_order = torch.ones_like(selection.is_tail)
    in_order[1:] = (row[1:] != row[:-1]) | (positions[1:] > positions[:-1])
    ranked, top = ~selection.is_tail, selection.counts[example, unit] - tail
    checks = {
        "holds a position outside its context": (positions < 0) | (positions >= length),
        "does not list its positions in ascending order, once each": ~in_order,
        "marks the wrong positions as tail": selection.is_tail != (positions >= length - tail),
        "holds a rank outside its ranked count": ranked & ((selection.ranks < 0) | (selection.ranks >= top)),
    }
    for problem, bad in checks.items():
        if bool(bad.any()):
            slot = int(bad.nonzero()[0])
            raise SelectionError(
                f"{unit_name(int(example[slot]), int(unit[slot]))} {problem}: position {int(positions[slot])}, "
                f"rank {int(selection.ranks[slot])} of a context of {int(length[slot])} with a tail of {int(tail[slot])}."
            )
    tail_slots = torch.zeros_like(selection.counts).index_put_((example, unit), selection.is_tail.to(torch.int64), accumulate=True)
    if bool((tail_slots != tails[:, None]).any()):
        b, p = (tail_slots != tails[:, None]).nonzero()[0].tolist()
        raise SelectionError(f"{unit_name(b, p)} keeps {int(tail_slots[b, p])} tail positions; the tail is {int(tails[b])}.")
    width = int(selection.ranks.max()) + 1 if slots else 1
    if len(torch.unique((row * width + selection.ranks)[ranked])) != int(ranked.sum()):
        raise SelectionError("a unit lists one rank twice: ranks of the ranked slots must be 0 .. count - tail - 1, once each.")
