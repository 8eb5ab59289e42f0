"""Encoded examples put together: padded batches, and an order that wastes little padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from acct.data.prompts import EncodedExample
from acct.errors import InputError
from acct.types import TokenBatch


def collate(examples: Sequence[EncodedExample], pad_id: int | None = 0) -> TokenBatch:
    """Context and query ids, padded apart on the right.

    Args:
        examples: at least one. pad_id: fills the padding, which nothing reads; None (a tokenizer without one) means 0.
    Returns:
        a batch with context_ids int64 [batch, context] and query_ids int64 [batch, query].
    """
    if not examples:
        raise InputError("a batch needs at least one example, got none.")
    context_ids, context_lengths = padded([example.context_ids for example in examples], pad_id)
    query_ids, query_lengths = padded([example.query_ids for example in examples], pad_id)
    return TokenBatch(context_ids, context_lengths, query_ids, query_lengths)


def padded(rows: Sequence[Sequence[int]], pad_id: int | None = 0) -> tuple[Tensor, Tensor]:
    """Right-padded ids int64 [batch, sequence], at least one wide, and their lengths int64 [batch]."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    ids = torch.full((len(rows), max(int(lengths.max()), 1)), 0 if pad_id is None else pad_id, dtype=torch.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return ids, lengths  # [batch, sequence], [batch]


def length_sorted_batches(examples: Sequence[EncodedExample], batch_size: int, max_tokens: int | None = None) -> list[list[int]]:
    """Indices of examples in batches of similar length, the longest first, so that a batch too large for memory fails at once.

    Args:
        examples: any order. batch_size: most examples of a batch.
        max_tokens: most padded tokens (context and query, times examples) of a batch; an example that exceeds it alone is alone.
    Returns:
        every index exactly once; examples of equal length keep their order.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    sizes = [len(example.context_ids) + len(example.query_ids) for example in examples]
    batches: list[list[int]] = []
    for index in sorted(range(len(examples)), key=lambda i: -sizes[i]):
        current = batches[-1] if batches else []
        full = len(current) >= batch_size or (max_tokens is not None and current and sizes[current[0]] * (len(current) + 1) > max_tokens)
        if not current or full:
            batches.append([])
        batches[-1].append(index)
    return batches
