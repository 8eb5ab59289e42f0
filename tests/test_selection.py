"""Selections against a plain loop over units, and every view against the packing it claims."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acct.errors import ArtifactError, SelectionError
from acct.geometry import ModelGeometry, PairGeometry
from acct.selection import (
    batch_index,
    concatenate,
    full_selection,
    gather_native,
    gather_source,
    layer_slice,
    padded_index,
    row_counts,
    rows,
    select,
    slots_of_rows,
    split,
    union,
    unit_index,
    validate,
)
from acct.selection_file import load_selection, save_selection
from acct.types import NativeStates, Selection, SourceStates

LAYERS, HEADS = 3, 2


def draw(seed: int, lengths: list[int], tail: int) -> tuple[Selection, torch.Tensor, torch.Tensor]:
    """A random selection with its order and prefix counts."""
    generator = torch.Generator().manual_seed(seed)
    width, units = max(lengths) + 1, LAYERS * HEADS
    order = torch.full((len(lengths), units, width), -7)
    counts = torch.zeros(len(lengths), units, dtype=torch.int64)
    tails = torch.tensor([min(tail, n) for n in lengths])
    for b, n in enumerate(lengths):
        prefix = n - int(tails[b])
        for p in range(units):
            order[b, p, :prefix] = torch.randperm(prefix, generator=generator)
            counts[b, p] = torch.randint(0, prefix + 1, (), generator=generator)
    return select(order, counts, torch.tensor(lengths), tails, LAYERS, HEADS), order, counts


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(0, 6))
def test_select_equals_a_loop_over_units_in_packed_order(seed: int, lengths: list[int], tail: int) -> None:
    selection, order, counts = draw(seed, lengths, tail)
    expected = []
    for layer in range(LAYERS):
        for b, n in enumerate(lengths):
            for head in range(HEADS):
                p, t = layer * HEADS + head, min(tail, n)
                ranked = {int(i): r for r, i in enumerate(order[b, p, : counts[b, p]])}
                kept = sorted([(i, r, False) for i, r in ranked.items()] + [(i, 0, True) for i in range(n - t, n)])
                expected += [(b, p, *entry) for entry in kept]
    columns = (batch_index(selection), unit_index(selection), selection.positions, selection.ranks, selection.is_tail)
    assert list(zip(*(column.tolist() for column in columns))) == expected
    validate(selection, counts + selection.tails[:, None])


def test_layer_slices_and_padded_indices_cover_the_packing() -> None:
    selection, *_ = draw(3, [9, 4, 1], 2)
    covered = []
    for layer in range(LAYERS):
        part = layer_slice(selection, layer)
        index, valid = padded_index(selection, layer)
        assert index.shape[:2] == (3, HEADS) and index.shape[2] == int(row_counts(selection)[layer].max())
        assert torch.equal(valid.sum(-1), row_counts(selection)[layer])
        assert torch.equal(index[valid], torch.arange(part.stop - part.start))
        covered += list(range(part.start, part.stop))
    assert covered == list(range(len(selection.positions)))


def test_padded_index_of_a_layer_without_slots_is_empty() -> None:
    order = torch.arange(4).expand(1, LAYERS * HEADS, 4)
    zero = torch.zeros(1, dtype=torch.int64)
    selection = select(order, torch.zeros(1, LAYERS * HEADS, dtype=torch.int64), torch.tensor([4]), zero, LAYERS, HEADS)
    index, valid = padded_index(selection, 1)
    assert index.shape == valid.shape == (1, HEADS, 0)


def test_union_holds_each_position_once_and_slots_point_at_theirs() -> None:
    selection, *_ = draw(5, [11, 6], 2)
    joined = union(selection)
    for b in range(2):
        own = joined.positions[joined.batch_index == b].tolist()
        assert own == sorted(set(selection.positions[batch_index(selection) == b].tolist()))
        assert joined.counts[b] == len(own) and joined.place[joined.batch_index == b].tolist() == list(range(len(own)))
    assert torch.equal(joined.positions[joined.slot_entry], selection.positions)
    assert torch.equal(joined.batch_index[joined.slot_entry], batch_index(selection))


def test_rows_split_and_concatenate_are_inverse() -> None:
    selection, order, counts = draw(8, [9, 4, 7], 3)
    again = concatenate(split(selection))
    for name in ("context_lengths", "tails", "counts", "positions", "ranks", "is_tail"):
        assert torch.equal(getattr(again, name), getattr(selection, name)), name
    chosen = torch.tensor([2, 0, 2])
    direct = select(order[chosen], counts[chosen], selection.context_lengths[chosen], selection.tails[chosen], LAYERS, HEADS)
    assert torch.equal(rows(selection, chosen).positions, direct.positions)
    assert torch.equal(selection.ranks[slots_of_rows(selection, [2, 0, 2])], direct.ranks)


def test_gathers_take_the_slots_own_unit_and_the_mapped_source_head() -> None:
    source = ModelGeometry("llama", layers=2, kv_heads=3, query_heads=3, head_dim=4, hidden=12, vocabulary=9)
    target = ModelGeometry("llama", layers=LAYERS, kv_heads=HEADS, query_heads=4, head_dim=2, hidden=8, vocabulary=9)
    pair = PairGeometry(source, target)
    selection, *_ = draw(9, [8, 5], 2)
    native = torch.randn(2, LAYERS * HEADS, 9, 2)
    lengths = selection.context_lengths
    keys, values = gather_native(selection, NativeStates(lengths, lengths, native, native + 1, native, native))
    keys_pre = torch.randn(2, 2, 3, 9, 4)
    states = SourceStates(torch.zeros(2, 9), lengths, torch.zeros(2, 9, 12), torch.zeros(2, 3, 9, 12), keys_pre, keys_pre + 1)
    source_keys, source_values = gather_source(selection, states, pair)
    for slot, (b, p, i) in enumerate(zip(*(x.tolist() for x in (batch_index(selection), unit_index(selection), selection.positions)))):
        assert torch.equal(keys[slot], native[b, p, i]) and torch.equal(values[slot], native[b, p, i] + 1)
        assert torch.equal(source_keys[slot], keys_pre[b, pair.source_layers()[p], pair.source_heads()[p], i])
        assert torch.equal(source_values[slot], source_keys[slot] + 1)


def test_full_selection_keeps_every_position() -> None:
    selection = full_selection(torch.tensor([5, 2]), LAYERS, HEADS)
    assert torch.equal(selection.counts, torch.tensor([[5] * 6, [2] * 6])) and not selection.is_tail.any()
    assert torch.equal(selection.ranks, selection.positions)
    validate(selection)
    assert int(full_selection(torch.tensor([5, 2]), LAYERS, HEADS, torch.tensor([3, 2])).is_tail.sum()) == 5 * 6


def test_saved_selections_come_back_and_damage_is_refused(tmp_path) -> None:
    selection, *_ = draw(10, [6, 3], 2)
    path = tmp_path / "deep" / "selection.safetensors"
    save_selection(selection, path, {"budget": "0.25"})
    loaded, identity = load_selection(path)
    assert identity == {"budget": "0.25"} and loaded.positions.dtype == torch.int64
    for name in ("context_lengths", "tails", "counts", "positions", "ranks", "is_tail"):
        assert torch.equal(getattr(loaded, name), getattr(selection, name))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match="truncated"):
        load_selection(path)
    with pytest.raises(ArtifactError, match="no selection at"):
        load_selection(tmp_path / "missing.safetensors")


def test_a_missing_position_names_unit_example_and_split_of_the_count() -> None:
    selection, *_ = draw(11, [9, 6], 2)
    counts = selection.counts.clone()
    counts[1, 5] += 1
    message = r"unit \(layer 2, head 1\) of searchqa/00412 keeps \d+ positions; the Allocator gave \d+ \(\d+ ranked \+ 2 tail\)"
    with pytest.raises(SelectionError, match=message):
        validate(selection, counts, ["other", "searchqa/00412"])


@pytest.mark.parametrize("field", ["positions", "ranks", "is_tail"])
def test_a_broken_field_is_refused(field: str) -> None:
    selection, *_ = draw(12, [9, 6], 2)
    value = getattr(selection, field).clone()
    value[2] = ~value[2] if field == "is_tail" else value[2] + 50
    with pytest.raises(SelectionError):
        validate(dataclasses.replace(selection, **{field: value}))


def test_counts_and_orders_that_do_not_fit_are_refused() -> None:
    order = torch.arange(4).expand(1, 6, 4).clone()
    lengths, tails, counts = torch.tensor([4]), torch.tensor([1]), torch.full((1, 6), 2)
    with pytest.raises(SelectionError, match="holds 3"):
        select(order, counts + 2, lengths, tails, LAYERS, HEADS)
    order[0, 3, 1] = 0
    with pytest.raises(SelectionError, match="every prefix position once"):
        select(order, counts, lengths, tails, LAYERS, HEADS)
    with pytest.raises(SelectionError, match="do not fit"):
        select(order[:, :5], counts, lengths, tails, LAYERS, HEADS)
