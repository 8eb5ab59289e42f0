"""What a mounting block leaves behind, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from acct.attention import IMPLEMENTATION
from acct.cache import MountedCache, extend, mounted
from acct.errors import InputError, InterfaceError
from acct.models.registry import adapter_for
from tests import tolerances
from tests.mounting import assert_rows_close, gated, run, target
from tests.reference.attention import native_kv, random_selection
from tests.tiny import tiny_batch, tiny_model


def test_attention_is_restored_after_the_block_and_after_an_error() -> None:
    adapter = target()
    before = adapter.model.config._attn_implementation
    with mounted(adapter, None, 1), mounted(adapter, None, 2):
        assert adapter.model.config._attn_implementation == IMPLEMENTATION
    assert adapter.model.config._attn_implementation == before
    with pytest.raises(ZeroDivisionError), mounted(adapter, None, 1):
        raise ZeroDivisionError
    assert adapter.model.config._attn_implementation == before


def test_two_mounts_of_one_model_and_one_of_another_work_in_one_scope() -> None:
    """Teacher and student caches of the target, and a mounted source, interleaved."""
    adapter, other, batch = target(), adapter_for(tiny_model("llama", size="source")), tiny_batch(seed=13)
    kvs = [native_kv(adapter, batch, random_selection(adapter, batch.context_lengths, seed)) for seed in (0, 1)]
    third = native_kv(other, batch, random_selection(other, batch.context_lengths, 2))
    expected = [run(one, kv, batch.query_ids, batch.query_lengths) for one, kv in ((adapter, kvs[0]), (adapter, kvs[1]), (other, third))]
    assert not torch.allclose(expected[0], expected[1])
    half = batch.query_ids[:, :2]
    lengths = torch.tensor([2, 2, 2])
    with mounted(adapter, kvs[0]) as teacher, mounted(other, third) as source, mounted(adapter, kvs[1]) as student:
        caches = [(adapter, teacher), (adapter, student), (other, source)]
        starts = [extend(model, cache, half, lengths) for model, cache in caches]
        plain = adapter.model(batch.context_ids).logits
        rests = [extend(model, cache, batch.query_ids[:, 2:], batch.query_lengths - 2) for model, cache in caches]
    torch.testing.assert_close(plain, adapter.model(batch.context_ids).logits, atol=tolerances.LOGITS, rtol=0)
    for start, rest, wanted in zip(starts, rests, expected):
        joined = torch.cat([start, rest], dim=1)
        assert_rows_close(joined, [wanted[row, :length] for row, length in enumerate(batch.query_lengths.tolist())])


def test_gradient_checkpointing_that_drops_the_cache_is_an_error() -> None:
    adapter, batch = target(), tiny_batch()
    adapter.model.gradient_checkpointing_enable()
    adapter.model.train()
    with mounted(adapter, None, 3) as cache:
        with pytest.raises(InterfaceError, match="gradient checkpointing"):
            extend(adapter, cache, batch.query_ids, batch.query_lengths)
        assert cache.native_width == 0


def test_a_failed_step_leaves_the_cache_as_it_was() -> None:
    adapter, batch = target(), tiny_batch()
    with mounted(adapter, None, 3) as cache:
        extend(adapter, cache, batch.query_ids, batch.query_lengths)

        def fail(*_: object) -> None:
            raise MemoryError

        handle = adapter.parts.blocks[1].register_forward_pre_hook(fail)
        with pytest.raises(MemoryError):
            extend(adapter, cache, batch.query_ids, batch.query_lengths)
        handle.remove()
        assert cache.native_lengths.tolist() == batch.query_lengths.tolist()
        assert all(layer.native == cache.native_width for layer in cache.layers)


def test_a_mounted_cache_outside_its_block_is_refused() -> None:
    adapter, batch = target(), tiny_batch()
    with mounted(adapter, None, 3) as cache:
        pass
    with pytest.raises(InterfaceError, match="inside the"):
        extend(adapter, cache, batch.query_ids, batch.query_lengths)
    with pytest.raises(InterfaceError, match="another attention function"):
        adapter.model(batch.query_ids, past_key_values=cache)


def test_a_plain_call_on_rows_of_unequal_length_is_refused() -> None:
    adapter, batch = target(), tiny_batch()
    kv = native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))
    with mounted(adapter, kv) as cache, pytest.raises(InterfaceError, match="Use `extend`"):
        adapter.model(batch.query_ids, past_key_values=cache)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda kv: replace(kv, rotated=False), "before RoPE"),
        (lambda kv: replace(kv, keys=kv.keys[:-1]), "slot, dim"),
        (lambda kv: replace(kv, values=kv.values[:, :-1]), "slot, dim"),
    ],
)
def test_states_that_do_not_fit_are_refused(change, message: str) -> None:  # type: ignore[no-untyped-def]
    adapter, batch = target(), tiny_batch()
    kv = native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))
    with pytest.raises(InputError, match=message), mounted(adapter, change(kv)):
        pass


def test_wrong_target_wrong_batch_and_missing_batch_are_refused() -> None:
    adapter, batch = target(), tiny_batch()
    kv = native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))
    with pytest.raises(InputError, match="batch 2"), mounted(adapter, kv, 2):
        pass
    other = target(num_hidden_layers=4)
    with pytest.raises(InputError, match="made for units"), mounted(other, kv):
        pass
    with pytest.raises(InputError, match="give `batch`"), mounted(adapter, None):
        pass
    context = gated(adapter, batch, torch.ones(3, adapter.geometry.units, 17, dtype=torch.bool))
    with pytest.raises(InputError, match="gates without dim"), mounted(adapter, replace(context, keys=context.keys[..., :-1])):
        pass
    with mounted(adapter, kv) as cache:
        assert isinstance(cache, MountedCache)
        with pytest.raises(InputError, match="do not fit a cache of 3 rows"):
            extend(adapter, cache, batch.query_ids[:2], batch.query_lengths[:2])
        for method in (cache.crop, lambda _: cache.reset()):
            with pytest.raises(InterfaceError, match="mark"):
                method(3)
