"""Utility targets against transformers' own attention weights and a full forward for every greedy token."""

from __future__ import annotations

import pytest
import torch

from acct.models.adapter import Capture
from acct.models.registry import adapter_for
from acct.supervision.teacher import attention_rows, sample_layers, utility_targets
from tests.tiny import one_row, tiny_batch, tiny_model


def greedy_by_full_forwards(model: torch.nn.Module, ids: list[int], steps: int, stops: tuple[int, ...]) -> list[int]:
    written: list[int] = []
    while len(written) < steps:
        token = int(model(torch.tensor([ids + written]), use_cache=False).logits[0, -1].argmax())
        if token in stops:
            break
        written.append(token)
    return written


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@torch.no_grad()
def test_utilities_equal_deletion_in_the_models_own_attention_rows(family: str) -> None:
    adapter = adapter_for(tiny_model(family, size="target"))
    shape, batch = adapter.geometry, tiny_batch()
    targets = utility_targets(adapter, batch, torch.Generator().manual_seed(0), layers=2, query_rows=4, continuation_rows=3)
    assert targets.units.shape == (3, 2 * shape.kv_heads) and targets.utilities.shape == (3, 2 * shape.kv_heads, 17)
    eager = tiny_model(family, size="target")
    eager.set_attn_implementation("eager")
    for b, (n, q) in enumerate(zip(batch.context_lengths.tolist(), batch.query_lengths.tolist())):
        ids = one_row(batch, b).joined()[0][0].tolist()
        continuation = greedy_by_full_forwards(eager, ids, 3, ())
        assert targets.continuations[b] == continuation
        full = torch.tensor([ids + continuation])
        weights = eager(full, output_attentions=True, use_cache=False).attentions  # per layer [1, query_head, seq, seq]
        values = adapter.forward(full, capture=Capture(keys=True)).values
        rows = [*range(n + max(q - 4, 0), n + q), *range(n + q, n + q + 3)]
        for place, unit in enumerate(targets.units[b].tolist()):
            layer, head = divmod(unit, shape.kv_heads)
            group = range(head * shape.queries_per_head, (head + 1) * shape.queries_per_head)
            attention = weights[layer][0, list(group)][:, rows].double()  # [query_head, row, seq]
            v = values[0, layer, head].double()
            output = attention @ v
            energy = output.square().sum(-1)
            for i in range(n):
                without = attention.clone()
                without[..., i] = 0
                moved = (without / without.sum(-1, keepdim=True)) @ v - output
                expected = (moved.square().sum(-1) / (energy + 1e-6 * energy.mean())).mean()
                assert float(targets.utilities[b, place, i]) == pytest.approx(float(expected), rel=2e-3, abs=1e-9)
        assert not targets.utilities[b, :, n:].any()


@torch.no_grad()
def test_a_stop_token_ends_one_row_and_leaves_the_others_as_they_are() -> None:
    adapter = adapter_for(tiny_model("qwen3", seed=1, size="target"))
    batch = tiny_batch(seed=3)
    free = attention_rows(adapter, batch, continuation_rows=6)
    stop = free.continuations[1][2]
    rows = attention_rows(adapter, batch, continuation_rows=6, stop_ids=[stop])
    for b in range(3):
        expected = free.continuations[b]
        expected = expected[: expected.index(stop)] if stop in expected else expected
        assert rows.continuations[b] == expected
        assert int(rows.lengths[b]) == int(batch.context_lengths[b] + batch.query_lengths[b]) + len(expected)
        assert int(rows.valid[b].sum()) == int(batch.query_lengths[b].clamp(max=8)) + len(expected)
        length = int(rows.lengths[b])
        torch.testing.assert_close(rows.keys_pre[b, :, :, :length], free.keys_pre[b, :, :, :length])
    alone = utility_targets(adapter, one_row(batch, 1), torch.Generator().manual_seed(0), layers=9, stop_ids=[stop])
    together = utility_targets(adapter, batch, torch.Generator().manual_seed(0), layers=9, stop_ids=[stop])
    torch.testing.assert_close(together.utilities[1, :, :5], alone.utilities[0], rtol=1e-3, atol=1e-8)


@torch.no_grad()
def test_a_target_that_stops_at_once_still_gives_its_query_rows() -> None:
    adapter = adapter_for(tiny_model("llama", size="target"))
    rows = attention_rows(adapter, tiny_batch(), query_rows=2, stop_ids=range(adapter.geometry.vocabulary))
    assert rows.continuations == [[], [], []] and rows.valid.shape == (3, 2)


def test_sampled_layers_differ_and_are_ascending() -> None:
    chosen = sample_layers(6, 50, 4, torch.Generator().manual_seed(0))
    assert chosen.shape == (50, 4) and bool((chosen.diff(dim=1) > 0).all()) and set(chosen.flatten().tolist()) == set(range(6))
    assert sample_layers(2, 1, 4, torch.Generator()).tolist() == [[0, 1]]
