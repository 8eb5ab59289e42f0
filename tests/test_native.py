"""Native target states against transformers' own cache and logits."""

from __future__ import annotations

import pytest
import torch

from acct.errors import InputError, ModelError
from acct.models.adapter import Capture
from acct.models.registry import adapter_for
from acct.native import read_native
from tests.tiny import FAMILIES, ROPE_KINDS, one_row, tiny_batch, tiny_model
from tests.tolerances import BATCHED_STATES, LOGITS, ROTATION

STATES = ("context_keys_pre", "context_values", "query_keys_pre", "query_values")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rope", ROPE_KINDS)
def test_units_hold_the_models_own_cache(family: str, rope: str) -> None:
    model = tiny_model(family, size="target", rope=rope)
    adapter, batch = adapter_for(model), one_row(tiny_batch(1, context=(27,), query=(5,)), 0)
    native = read_native(adapter, batch, queries=True, logits=True)
    own = model(batch.joined()[0], use_cache=True)
    keys = adapter.rotate(torch.cat([native.context_keys_pre, native.query_keys_pre], dim=2), torch.arange(32))
    values = torch.cat([native.context_values, native.query_values], dim=2)
    for layer in range(3):
        for head in range(3):
            unit = 3 * layer + head
            assert (keys[0, unit] - own.past_key_values.layers[layer].keys[0, head]).abs().max() <= ROTATION
            assert torch.equal(values[0, unit], own.past_key_values.layers[layer].values[0, head])
    assert (native.logits - own.logits[:, 27:]).abs().max() <= LOGITS
    every = adapter.forward(batch.joined()[0], capture=Capture(queries=True)).queries_pre
    assert native.queries_pre.shape == (1, 3, 9, 5, 16) and torch.equal(native.queries_pre, every[..., 27:, :])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rope", ["default", "dynamic"])
def test_batched_rows_equal_single_rows(family: str, rope: str) -> None:
    adapter = adapter_for(tiny_model(family, size="target", rope=rope))
    batch = tiny_batch(2, context=(9, 1, 28), query=(3, 8, 1))
    together = read_native(adapter, batch, queries=True, logits=True)
    for row in range(batch.batch):
        alone = read_native(adapter, one_row(batch, row), queries=True, logits=True)
        n, q = int(batch.context_lengths[row]), int(batch.query_lengths[row])
        for name in (*STATES, "queries_pre", "logits"):
            length = n if name.startswith("context") else q
            field = getattr(together, name)[row]
            tolerance = LOGITS if name == "logits" else BATCHED_STATES
            assert (field[..., :length, :] - getattr(alone, name)[0]).abs().max() <= tolerance, name
            assert not field[..., length:, :].any()


def test_only_what_was_asked_for() -> None:
    native = read_native(adapter_for(tiny_model("llama", size="target")), tiny_batch(3))
    assert native.queries_pre is None and native.logits is None
    assert native.context_keys_pre.shape == (3, 9, 17, 16) and native.query_values.shape == (3, 9, 6, 16)


def test_empty_rows_and_nan_are_refused() -> None:
    model = tiny_model("llama", size="target")
    with pytest.raises(InputError, match="row 0 has an empty context"):
        read_native(adapter_for(model), tiny_batch(4, context=(0, 3), query=(1, 1)))
    model.lm_head.weight.data[5, 5] = float("nan")
    with pytest.raises(ModelError, match="the target model computed NaN or Inf in logits"):
        read_native(adapter_for(model), tiny_batch(5), logits=True)
