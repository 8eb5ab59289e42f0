"""Targets, native logits and gated states that the tests of the mounted cache compare."""

from __future__ import annotations

import torch
from torch import Tensor

from acct.cache import extend, mounted
from acct.models.adapter import ModelAdapter
from acct.models.registry import adapter_for
from acct.types import GatedKV, SparseKV, TokenBatch
from tests import tolerances
from tests.reference.attention import native_states
from tests.tiny import one_row, tiny_model


def target(family: str = "qwen3", **overrides: object) -> ModelAdapter:
    return adapter_for(tiny_model(family, size="target", **overrides))


def native_logits(adapter: ModelAdapter, batch: TokenBatch) -> list[Tensor]:
    """Stock logits at the query positions of each row, row by row: [query, vocabulary]."""
    out = []
    for row in range(batch.batch):
        one = one_row(batch, row)
        ids = torch.cat([one.context_ids, one.query_ids], dim=1)
        out.append(adapter.model(ids).logits[0, one.context_ids.shape[1] :])
    return out


def run(adapter: ModelAdapter, context: SparseKV | GatedKV | None, ids: Tensor, lengths: Tensor) -> Tensor:
    with mounted(adapter, context, len(lengths)) as cache:
        return extend(adapter, cache, ids, lengths)


def assert_rows_close(logits: Tensor, expected: list[Tensor], tolerance: float = tolerances.MOUNTED_LOGITS) -> None:
    for row, wanted in enumerate(expected):
        torch.testing.assert_close(logits[row, : len(wanted)], wanted, atol=tolerance, rtol=0)


def gated(adapter: ModelAdapter, batch: TokenBatch, hard: Tensor, seed: int = 0) -> GatedKV:
    """Native states under random gates; closed (log g = -inf) at some positions that are not selected."""
    native = native_states(adapter, batch)
    generator = torch.Generator().manual_seed(seed)
    gates = torch.rand(hard.shape, generator=generator).log()
    gates = gates.masked_fill(~hard & (torch.rand(hard.shape, generator=generator) < 0.2), float("-inf"))
    keys = adapter.rotate(native.context_keys_pre, torch.arange(hard.shape[-1]))
    return GatedKV(batch.context_lengths, keys, native.context_values, hard, gates.requires_grad_())
