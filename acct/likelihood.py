"""Token likelihoods after a mounted context: candidates of a choice task, and one continuation (spec 8).

Scoring leaves the cache as it was found: the query is run once and rewound, candidates run on rows that share its storage. Gradients
flow where the mounted states carry them; wrap calls in `torch.no_grad()` otherwise. Log-probabilities are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from acct.cache import MountedCache, extend
from acct.errors import InputError
from acct.generation import check_queries
from acct.models.adapter import ModelAdapter


def token_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """-log p of each target: logits [..., vocabulary], targets int64 [...] -> float32 [...]."""
    wide = logits.float()
    return wide.logsumexp(dim=-1) - wide.gather(-1, targets.to(logits.device)[..., None])[..., 0]


def pad_ids(rows: Sequence[Sequence[int]], width: int = 0) -> tuple[Tensor, Tensor]:
    """Lists of ids as int64 [row, width], right-padded with zeros, and their lengths int64 [row]."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    width = max([width, *(len(row) for row in rows)])
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64).view(len(rows), width), lengths


def candidate_nll(
    adapter: ModelAdapter,
    cache: MountedCache,
    query_ids: Tensor,
    query_lengths: Tensor,
    candidates: Sequence[Sequence[Sequence[int]]],
    rows_per_pass: int = 64,
    measure: Callable[[Tensor, Tensor], Tensor] = token_nll,
) -> list[list[Tensor]]:
    """Token NLLs of every candidate of every example after its query.

    Args:
        query_ids: int64 [batch, query], right-padded. query_lengths: int64 [batch], at least 1.
        candidates: for each example, its candidates' ids, each with at least one id; numbers and lengths may differ.
        rows_per_pass: candidates run together; bounds memory.
        measure: from logits [..., vocabulary] and targets [...] to what is wanted of each token, [...] or with further axes behind.
    Returns:
        For each example and candidate, float32 [tokens] (and the further axes of `measure`). The cache is as it was found.
    Raises:
        InputError: an empty candidate, an id outside the vocabulary, or lists that do not fit the batch.
    """
    check_queries(query_lengths)
    if len(candidates) != cache.batch:
        raise InputError(f"candidates for {len(candidates)} examples do not fit a cache of {cache.batch} rows.")
    flat = [(row, list(ids)) for row, options in enumerate(candidates) for ids in options]
    for row, ids in flat:
        if not ids:
            raise InputError(f"example {row} has an empty candidate; its likelihood is undefined. Leave it out.")
    mark = cache.mark()
    try:
        last = (query_lengths - 1)[:, None]
        first = extend(adapter, cache, query_ids, query_lengths, at=last)[:, 0]  # [batch, vocabulary]
        scored: list[Tensor] = []
        for start in range(0, len(flat), rows_per_pass):
            chunk = flat[start : start + rows_per_pass]
            owners = torch.tensor([row for row, _ in chunk], device=first.device)
            targets, lengths = pad_ids([ids for _, ids in chunk])
            adapter.check_ids(targets)
            nll = measure(first[owners], targets[:, 0])[:, None]
            if targets.shape[1] > 1:
                logits = extend(adapter, cache.take(owners), targets[:, :-1], lengths - 1)
                nll = torch.cat([nll, measure(logits, targets[:, 1:])], dim=1)
            scored += [row[:length] for row, length in zip(nll, lengths.tolist())]
    finally:
        cache.rewind(mark)
    remaining = iter(scored)
    return [[next(remaining) for _ in options] for options in candidates]


def continuation_nll(
    adapter: ModelAdapter,
    cache: MountedCache,
    query_ids: Tensor,
    query_lengths: Tensor,
    continuations: Sequence[Sequence[int]],
) -> list[Tensor]:
    """Token NLLs of one teacher-forced continuation for each example, in one pass over [query; continuation].

    Args:
        query_ids: int64 [batch, query], right-padded. query_lengths: int64 [batch], at least 1.
        continuations: ids for each example, at least one id each.
    Returns:
        For each example float32 [tokens]; perplexity is exp of their mean. The cache is as it was found.
    Raises:
        InputError: an empty continuation, an id outside the vocabulary, or lists that do not fit the batch.
    """
    check_queries(query_lengths)
    if len(continuations) != cache.batch or not all(len(ids) for ids in continuations):
        sizes = [len(ids) for ids in continuations]
        raise InputError(f"continuations of {sizes} tokens do not fit a cache of {cache.batch} rows: give each row at least one token.")
    rows = [[*query[:length], *ids[:-1]] for query, length, ids in zip(query_ids.tolist(), query_lengths.tolist(), continuations)]
    joined, lengths = pad_ids(rows)
    targets, target_lengths = pad_ids(continuations)
    adapter.check_ids(targets)
    asked = (query_lengths.cpu() - 1)[:, None] + torch.arange(targets.shape[1])  # the token before each target
    mark = cache.mark()
    try:
        logits = extend(adapter, cache, joined, lengths, at=asked.clamp(max=joined.shape[1] - 1))
    finally:
        cache.rewind(mark)
    nll = token_nll(logits, targets)
    return [row[:length] for row, length in zip(nll, target_lengths.tolist())]
