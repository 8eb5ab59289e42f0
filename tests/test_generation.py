"""Greedy generation after a mounted context against transformers' own generate, and the faults that such loops have had."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from acct.cache import extend, mounted
from acct.errors import InputError, InterfaceError
from acct.generation import Generation, generate_hf, greedy, stop_tokens
from acct.likelihood import candidate_nll
from acct.models.adapter import ModelAdapter
from acct.models.registry import adapter_for
from acct.selection import full_selection
from acct.types import SparseKV, TokenBatch
from tests.reference.attention import native_kv, random_selection
from tests.tiny import FAMILIES, one_row, tiny_batch, tiny_model


def target(family: str = "qwen3") -> ModelAdapter:
    return adapter_for(tiny_model(family, size="target"))


def everything(adapter: ModelAdapter, batch: TokenBatch) -> SparseKV:
    return native_kv(adapter, batch, full_selection(batch.context_lengths, adapter.geometry.layers, adapter.geometry.kv_heads))


def sparse(adapter: ModelAdapter, batch: TokenBatch) -> SparseKV:
    return native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))


def native_generate(adapter: ModelAdapter, batch: TokenBatch, row: int, new: int, stops: list[int] | None = None) -> list[int]:
    """transformers' generate on [context; query] of one row, nothing mounted; the stop token included."""
    one = one_row(batch, row)
    ids = torch.cat([one.context_ids, one.query_ids], dim=1)
    out = adapter.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, eos_token_id=stops or [10**6], pad_token_id=0
    )
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_mounted_native_states_generate_what_the_model_generates(family: str) -> None:
    adapter, batch = target(family), tiny_batch()
    expected = [native_generate(adapter, batch, row, 6) for row in range(3)]
    with mounted(adapter, everything(adapter, batch)) as cache:
        assert greedy(adapter, cache, batch.query_ids, batch.query_lengths, 6) == Generation(expected, [False] * 3)
    ids, lengths = batch.joined()
    with mounted(adapter, None, 3) as cache:
        assert greedy(adapter, cache, ids, lengths, 6).tokens == expected


def test_a_batch_generates_what_its_rows_generate_alone() -> None:
    adapter, batch = target(), tiny_batch(seed=2)
    with mounted(adapter, sparse(adapter, batch)) as cache:
        together = greedy(adapter, cache, batch.query_ids, batch.query_lengths, 5).tokens
        for row in range(3):
            alone = one_row(batch, row)
            assert greedy(adapter, cache.take([row]), alone.query_ids, alone.query_lengths, 5).tokens == [together[row]]


def test_the_first_token_is_the_argmax_of_the_query_and_no_position_occurs_twice() -> None:
    """Case 2: the last query token is not fed again."""
    adapter, batch = target(), tiny_batch(seed=3)
    kv = sparse(adapter, batch)
    with mounted(adapter, kv) as cache:
        logits = extend(adapter, cache, batch.query_ids, batch.query_lengths)
    wanted = [int(logits[row, length - 1].argmax()) for row, length in enumerate(batch.query_lengths.tolist())]
    fed: list[Tensor] = []
    positions: list[Tensor] = []

    def record(module: object, args: tuple, kwargs: dict) -> None:
        fed.append(kwargs["input_ids"])
        positions.append(kwargs["position_ids"])

    handle = adapter.parts.decoder.register_forward_pre_hook(record, with_kwargs=True)
    with mounted(adapter, kv) as cache:
        tokens = greedy(adapter, cache, batch.query_ids, batch.query_lengths, 4).tokens
    handle.remove()
    assert [row[0] for row in tokens] == wanted
    for row, (n, q) in enumerate(zip(batch.context_lengths.tolist(), batch.query_lengths.tolist())):
        seen = positions[0][row, :q].tolist() + [int(step[row, 0]) for step in positions[1:]]
        assert seen == list(range(n, n + q + 3))
        assert [int(step[row, 0]) for step in fed[1:]] == tokens[row][:3]


@pytest.mark.parametrize("family", FAMILIES)
def test_stop_tokens_end_rows_as_they_do_natively(family: str) -> None:
    """Case 30: rows stop at the same place as the model's own loop; the stop token is removed and flagged."""
    adapter, batch = target(family), tiny_batch(seed=4)
    free = [native_generate(adapter, batch, row, 6) for row in range(3)]
    stops = [free[0][2], free[1][0]]
    natively = [native_generate(adapter, batch, row, 6, stops) for row in range(3)]
    with mounted(adapter, everything(adapter, batch)) as cache:
        tokens, ended = greedy(adapter, cache, batch.query_ids, batch.query_lengths, 6, stops)
    assert tokens == [row[:-1] if row[-1] in stops else row for row in natively]
    assert ended == [row[-1] in stops for row in natively]
    assert tokens[1] == [] and ended[0] and ended[1]


def test_the_models_own_stop_tokens_are_found() -> None:
    adapter = target()
    assert stop_tokens(adapter) == (2,)
    adapter.model.generation_config.eos_token_id = [2, 5]
    assert stop_tokens(adapter) == (2, 5)
    adapter.model.generation_config.eos_token_id = adapter.model.config.eos_token_id = None
    assert stop_tokens(adapter) == ()


def test_generation_after_scoring_equals_generation_on_a_fresh_mount() -> None:
    """Case 1: scoring the gold answer, or an earlier generation, does not move the cache."""
    adapter, batch = target(), tiny_batch(seed=5)
    kv = sparse(adapter, batch)
    with mounted(adapter, kv) as cache:
        fresh = greedy(adapter, cache, batch.query_ids, batch.query_lengths, 5)
    with mounted(adapter, kv) as cache:
        candidate_nll(adapter, cache, batch.query_ids, batch.query_lengths, [[[5, 6, 7]], [[8]], [[9, 10], [11]]])
        assert cache.native_width == 0
        assert greedy(adapter, cache, batch.query_ids, batch.query_lengths, 5) == fresh
        assert cache.native_width == 0
        assert greedy(adapter, cache, batch.query_ids, batch.query_lengths, 5) == fresh


def test_a_kept_generation_can_be_continued() -> None:
    adapter, batch = target(), tiny_batch(seed=6)
    with mounted(adapter, sparse(adapter, batch)) as cache:
        whole = greedy(adapter, cache, batch.query_ids, batch.query_lengths, 5).tokens
        head = greedy(adapter, cache, batch.query_ids, batch.query_lengths, 2, keep=True).tokens
        assert cache.native_lengths.tolist() == (batch.query_lengths + 1).tolist()  # the last token is not fed
        last = torch.tensor([[row[-1]] for row in head])
        tail = greedy(adapter, cache, last, torch.ones(3, dtype=torch.int64), 3).tokens
    assert [one + other for one, other in zip(head, tail)] == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_generate_on_a_mounted_cache_equals_the_greedy_loop(family: str) -> None:
    """Case 13: an external cache with fewer stored slots than N takes positions from N."""
    adapter, batch = target(family), tiny_batch(seed=7, context=(12, 12), query=(4, 4))
    kv = sparse(adapter, batch)
    with mounted(adapter, kv) as cache:
        expected = greedy(adapter, cache, batch.query_ids, batch.query_lengths, 6).tokens
        got = generate_hf(adapter, cache, batch.query_ids, 6, eos_token_id=[10**6], pad_token_id=0)
        assert got.tolist() == expected and cache.native_width == 0
        again = generate_hf(adapter, cache, batch.query_ids, 6, eos_token_id=[10**6], pad_token_id=0, keep=True)
        assert again.tolist() == expected and cache.native_width == 4 + 5


def test_beam_search_on_a_mount_of_everything_equals_native_beam_search() -> None:
    adapter, batch = target(), tiny_batch(seed=8, context=(10, 10), query=(3, 3))
    settings = {"num_beams": 3, "do_sample": False, "eos_token_id": [10**6], "pad_token_id": 0}
    ids = torch.cat([batch.context_ids, batch.query_ids], dim=1)
    expected = adapter.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, **settings)[:, 13:]
    with mounted(adapter, everything(adapter, batch)) as cache:
        got = generate_hf(adapter, cache.repeat(3), batch.query_ids, 5, **settings)
    assert got.tolist() == expected.tolist()


def test_a_long_context_with_few_new_tokens_gives_no_empty_output() -> None:
    """Case 16: limits count generated tokens; neither the prompt's length nor the batch's padding enters."""
    adapter, batch = target(), tiny_batch(seed=9, context=(60, 60), query=(2, 2))
    with mounted(adapter, sparse(adapter, batch)) as cache:
        first = greedy(adapter, cache, batch.query_ids, batch.query_lengths, 3).tokens
        assert [len(row) for row in first] == [3, 3]
        wide = torch.nn.functional.pad(batch.query_ids, (0, 9))
        assert greedy(adapter, cache, wide, batch.query_lengths, 3).tokens == first
        assert generate_hf(adapter, cache, batch.query_ids, 3, eos_token_id=[10**6], pad_token_id=0).tolist() == first


def test_generate_refuses_rows_of_unequal_length() -> None:
    adapter, batch = target(), tiny_batch()
    with mounted(adapter, sparse(adapter, batch)) as cache, pytest.raises(InterfaceError, match="Use `extend`"):
        generate_hf(adapter, cache, batch.query_ids, 2)


def test_empty_queries_and_limits_are_refused() -> None:
    adapter, batch = target(), tiny_batch()
    with mounted(adapter, None, 3) as cache:
        with pytest.raises(InputError, match="row 1 has a query of 0"):
            greedy(adapter, cache, batch.query_ids, torch.tensor([1, 0, 2]), 2)
        with pytest.raises(InputError, match="max_new_tokens"):
            greedy(adapter, cache, batch.query_ids, batch.query_lengths, 0)
