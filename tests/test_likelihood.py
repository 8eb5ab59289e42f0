"""Candidate and continuation likelihoods against stock runs over [context; query; candidate]."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from acct.cache import extend, mounted
from acct.errors import InputError
from acct.likelihood import candidate_nll, continuation_nll, token_nll
from acct.models.adapter import ModelAdapter
from acct.models.registry import adapter_for
from acct.selection import full_selection
from acct.types import TokenBatch
from tests import tolerances
from tests.reference.attention import native_kv, random_selection
from tests.tiny import FAMILIES, one_row, tiny_batch, tiny_model

CANDIDATES = [[[5, 6, 7], [8]], [[9, 10, 11, 12]], [[13], [14, 15], [16, 17, 18]]]


def target(family: str = "qwen3") -> ModelAdapter:
    return adapter_for(tiny_model(family, size="target"))


def stock_nll(adapter: ModelAdapter, batch: TokenBatch, row: int, ids: list[int]) -> Tensor:
    one = one_row(batch, row)
    prompt = torch.cat([one.context_ids, one.query_ids], dim=1)
    logits = adapter.model(torch.cat([prompt, torch.tensor([ids])], dim=1)).logits[0]
    log_p = logits[prompt.shape[1] - 1 : -1].log_softmax(-1)
    return -log_p[torch.arange(len(ids)), torch.tensor(ids)]


@pytest.mark.parametrize("rows_per_pass", [1, 2, 64])
@pytest.mark.parametrize("family", FAMILIES)
def test_candidates_after_native_states_equal_stock_runs(family: str, rows_per_pass: int) -> None:
    adapter, batch = target(family), tiny_batch()
    selection = full_selection(batch.context_lengths, adapter.geometry.layers, adapter.geometry.kv_heads)
    with mounted(adapter, native_kv(adapter, batch, selection)) as cache:
        got = candidate_nll(adapter, cache, batch.query_ids, batch.query_lengths, CANDIDATES, rows_per_pass)
    assert [len(row) for row in got] == [2, 1, 3]
    for row, options in enumerate(CANDIDATES):
        for nll, ids in zip(got[row], options):
            torch.testing.assert_close(nll, stock_nll(adapter, batch, row, ids), atol=tolerances.MOUNTED_LOGITS, rtol=0)


def test_continuations_equal_candidates_and_stock_runs() -> None:
    adapter, batch = target(), tiny_batch(seed=1)
    ids, lengths = batch.joined()
    continuations = [[5, 6, 7, 8], [9], [10, 11]]
    with mounted(adapter, None, 3) as cache:
        natively = continuation_nll(adapter, cache, ids, lengths, continuations)
        assert cache.native_width == 0
    for row, nll in enumerate(natively):
        torch.testing.assert_close(nll, stock_nll(adapter, batch, row, continuations[row]), atol=tolerances.MOUNTED_LOGITS, rtol=0)
    kv = native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))
    with mounted(adapter, kv) as cache:
        one = continuation_nll(adapter, cache, batch.query_ids, batch.query_lengths, continuations)
        other = candidate_nll(adapter, cache, batch.query_ids, batch.query_lengths, [[row] for row in continuations])
    for left, (right,) in zip(one, other):
        torch.testing.assert_close(left, right, atol=tolerances.MOUNTED_LOGITS, rtol=0)


def test_scoring_leaves_a_started_cache_as_it_was_found() -> None:
    """Case 1, also after an error in the middle."""
    adapter, batch = target(), tiny_batch(seed=2)
    kv = native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))
    nxt, ones = torch.full((3, 1), 9), torch.ones(3, dtype=torch.int64)

    def start(cache) -> None:  # type: ignore[no-untyped-def]
        extend(adapter, cache, batch.query_ids, batch.query_lengths)

    with mounted(adapter, kv) as cache:
        start(cache)
        expected = extend(adapter, cache, nxt, ones)
    with mounted(adapter, kv) as cache:
        start(cache)
        candidate_nll(adapter, cache, nxt, ones, CANDIDATES)
        continuation_nll(adapter, cache, nxt, ones, [[4], [5, 6], [7]])
        with pytest.raises(InputError):
            candidate_nll(adapter, cache, nxt, ones, [[[5], [4, 10**6]], [[5]], [[5]]])
        assert torch.equal(extend(adapter, cache, nxt, ones), expected)


def test_likelihoods_carry_gradients_into_mounted_states() -> None:
    adapter, batch = target(), tiny_batch(seed=3)
    kv = native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))
    leaf = kv.values.clone().requires_grad_()
    with mounted(adapter, replace(kv, values=leaf)) as cache:
        one = continuation_nll(adapter, cache, batch.query_ids, batch.query_lengths, [[5, 6], [7], [8, 9]])
        other = candidate_nll(adapter, cache, batch.query_ids, batch.query_lengths, [[[5, 6]], [[7]], [[8, 9]]])
    (first,) = torch.autograd.grad(sum(nll.sum() for nll in one), leaf)
    (second,) = torch.autograd.grad(sum(nll.sum() for (nll,) in other), leaf)
    assert float(first.abs().max()) > 1e-3
    torch.testing.assert_close(first, second, atol=tolerances.MOUNTED_LOGITS, rtol=1e-3)


def test_token_nll_is_the_negative_log_softmax() -> None:
    logits = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 5, 10], [3, 3, 1]])
    torch.testing.assert_close(token_nll(logits, targets), -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0])


def test_empty_candidates_and_wrong_batches_are_refused() -> None:
    adapter, batch = target(), tiny_batch()
    with mounted(adapter, None, 3) as cache:
        arguments = (adapter, cache, batch.query_ids, batch.query_lengths)
        with pytest.raises(InputError, match="example 1 has an empty candidate"):
            candidate_nll(*arguments, [[[5]], [[6], []], [[7]]])
        with pytest.raises(InputError, match="2 examples do not fit a cache of 3"):
            candidate_nll(*arguments, [[[5]], [[6]]])
        with pytest.raises(InputError, match="at least one token"):
            continuation_nll(*arguments, [[5], [], [6]])
        assert candidate_nll(*arguments, [[], [[5]], []])[0] == []
