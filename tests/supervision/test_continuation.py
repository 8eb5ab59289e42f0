"""[context; query + continuation] built from attention rows against a run over the longer sequence."""

from __future__ import annotations

import pytest
import torch

from acct.models.registry import adapter_for
from acct.native import read_native
from acct.supervision.continuation import with_continuation
from acct.supervision.teacher import attention_rows
from tests.tiny import tiny_batch, tiny_model


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_it_is_the_native_run_over_the_longer_query(family: str) -> None:
    adapter, batch = adapter_for(tiny_model(family)), tiny_batch()
    rows = attention_rows(adapter, batch, query_rows=3, continuation_rows=4)
    stop = rows.continuations[0][2]
    rows = attention_rows(adapter, batch, query_rows=3, continuation_rows=4, stop_ids=[stop])
    counts = [len(tokens) for tokens in rows.continuations]
    assert min(counts) < 4, "continuations of several lengths"
    longer, found = with_continuation(batch, rows)
    assert longer.query_lengths.tolist() == [q + n for q, n in zip(batch.query_lengths.tolist(), counts)]
    for example, (tokens, q) in enumerate(zip(rows.continuations, batch.query_lengths.tolist())):
        assert longer.query_ids[example, : q + len(tokens)].tolist() == batch.query_ids[example, :q].tolist() + tokens
    expected = read_native(adapter, longer, queries=True)
    for name in ("context_keys_pre", "context_values", "query_keys_pre", "query_values"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-5)
    assert found.queries_pre is not None and expected.queries_pre is not None
    for example, (count, q) in enumerate(zip(counts, batch.query_lengths.tolist())):
        own, other, first = found.queries_pre[example], expected.queries_pre[example], max(q - 3, 0)
        torch.testing.assert_close(own[:, :, first : q + count], other[:, :, first : q + count], rtol=1e-4, atol=1e-5)
        assert not own[:, :, q + count :].any() and not own[:, :, :first].any()
