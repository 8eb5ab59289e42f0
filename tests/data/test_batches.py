"""Padding and length-sorted batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acct.data.batches import collate, length_sorted_batches, padded
from acct.data.prompts import encode
from acct.data.tasks.registry import get_task
from acct.errors import InputError

from .hub_rows import ROWS
from .tiny_tokenizers import tokenizer

TINY = tokenizer(bos=True)
ENCODED = encode(get_task("boolq").from_row(ROWS["boolq"][0], 0), TINY)


def sized(context: int, query: int):
    return replace(ENCODED, context_ids=tuple(range(5, 5 + context)), query_ids=tuple(range(50, 50 + query)))


def test_collate_pads_context_and_query_apart_on_the_right():
    batch = collate([sized(3, 1), sized(1, 2)], pad_id=9)
    assert batch.context_ids.tolist() == [[5, 6, 7], [5, 9, 9]] and batch.context_lengths.tolist() == [3, 1]
    assert batch.query_ids.tolist() == [[50, 9], [50, 51]] and batch.query_lengths.tolist() == [1, 2]
    assert all(tensor.dtype == torch.int64 for tensor in vars(batch).values())
    ids, lengths = batch.joined()
    assert ids[1, :3].tolist() == [5, 50, 51] and lengths.tolist() == [4, 3]


def test_no_pad_token_and_no_examples():
    assert collate([sized(2, 1), sized(1, 1)], None).context_ids.tolist() == [[5, 6], [5, 0]]
    assert padded([()])[0].shape == (1, 1)
    with pytest.raises(InputError, match="at least one example"):
        collate([])


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), max_size=30), st.integers(1, 6), st.one_of(st.none(), st.integers(1, 200))
)
def test_batches_hold_every_index_once_and_keep_their_limits(sizes, batch_size, max_tokens):
    examples = [sized(*size) for size in sizes]
    batches = length_sorted_batches(examples, batch_size, max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    totals = [[sum(sizes[index]) for index in batch] for batch in batches]
    flat = [total for batch in totals for total in batch]
    assert flat == sorted(flat, reverse=True)
    for batch in totals:
        assert 1 <= len(batch) <= batch_size
        assert max_tokens is None or len(batch) == 1 or max(batch) * len(batch) <= max_tokens


def test_equal_lengths_keep_their_order():
    assert length_sorted_batches([sized(2, 1)] * 3, 2) == [[0, 1], [2]]
    with pytest.raises(InputError, match="batch_size"):
        length_sorted_batches([], 0)
