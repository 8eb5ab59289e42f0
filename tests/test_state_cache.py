"""Stored states of frozen models: equal to computed ones bit for bit, read instead of computed, and never those of something else."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

from acct.config.root import Config
from acct.config.training import STAGES
from acct.models.adapter import ModelAdapter
from acct.models.registry import adapter_for
from acct.native import read_native
from acct.source import read_context, read_source
from acct.state_cache import StateCache, take
from acct.state_store import StateStore
from acct.supervision.teacher import attention_rows
from acct.training import files
from acct.training.artifacts import KINDS, load_artifact
from acct.training.run import train
from tests.tiny import FAMILIES, tiny_batch, tiny_model
from tests.tolerances import BATCHED_STATES
from tests.training.conftest import tiny


def assert_same(found: object, expected: object, tolerance: float = 0.0) -> None:
    """Every field equal, tensors bit for bit; to a tolerance where an example was read in another batch."""
    for item in fields(expected):  # type: ignore[arg-type]
        one, other = getattr(found, item.name), getattr(expected, item.name)
        if isinstance(other, Tensor):
            assert one.dtype == other.dtype and torch.allclose(one, other, rtol=0, atol=tolerance), item.name
        else:
            assert one == other, item.name


def passes(adapter: ModelAdapter) -> list[int]:
    """A list that grows by one with every call of the model's decoder."""
    seen: list[int] = []
    adapter.parts.decoder.register_forward_pre_hook(lambda *_: seen.append(1))
    return seen


def adapter_of(family: str = "qwen2", size: str = "source", seed: int = 0, rope: str | None = None) -> ModelAdapter:
    return adapter_for(tiny_model(family, seed, size, rope))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_read_back_is_what_was_computed_and_no_model_runs(family: str, tmp_path: Path) -> None:
    source, target, batch = adapter_of(family), adapter_of(family, "target"), tiny_batch()
    asked = {"query_rows": 4, "continuation_rows": 3, "stop_ids": (7,)}
    for again in (False, True):
        cache = StateCache(StateStore(tmp_path))
        ran = [passes(source), passes(target)]
        read = cache.source(source, batch)
        native = cache.native(target, batch, queries=True)
        rows = cache.rows(target, batch, **asked)
        if again:
            assert ran == [[], []]
        assert_same(read, read_source(source, batch))
        assert_same(native, read_native(target, batch, queries=True))
        expected = attention_rows(target, batch, **asked)
        assert rows.continuations == expected.continuations
        for name in ("positions", "valid", "lengths"):
            assert torch.equal(getattr(rows, name), getattr(expected, name)), name
        live = expected.valid[:, None, None, :, None]
        assert torch.equal(rows.queries_pre * live, expected.queries_pre * live)
        seen = (torch.arange(expected.keys_pre.shape[-2]) < expected.lengths[:, None])[:, None, None, :, None]
        assert torch.equal(rows.keys_pre, expected.keys_pre * seen) and torch.equal(rows.values, expected.values * seen)


def test_context_and_history_are_shared_between_readers(tmp_path: Path) -> None:
    source, target, batch, cache = adapter_of(), adapter_of("qwen2", "target"), tiny_batch(), StateCache(StateStore(tmp_path))
    cache.source(source, batch)
    ran = passes(source)
    states = cache.context(source, batch.context_ids, batch.context_lengths)
    assert ran == [] and states.query_hidden is None
    expected = read_context(source, batch.context_ids, batch.context_lengths)
    assert torch.allclose(states.keys_pre, expected.keys_pre, atol=BATCHED_STATES) and states.identity == expected.identity
    cache.rows(target, batch)
    written = cache.store.written
    cache.native(target, batch)
    assert cache.store.written == written
    ran = passes(target)
    assert cache.native(target, batch, queries=True).queries_pre is not None
    for query_rows in (2, 5, 9):  # fewer, as many as some have, more than all have
        rows, expected = cache.rows(target, batch, query_rows), attention_rows(adapter_of("qwen2", "target"), batch, query_rows)
        assert torch.equal(rows.valid, expected.valid) and torch.equal(rows.positions, expected.positions)
        live = expected.valid[:, None, None, :, None]
        assert torch.allclose(rows.queries_pre * live, expected.queries_pre * live, atol=BATCHED_STATES)
    assert cache.store.written == written and ran == []
    cache.rows(target, batch, continuation_rows=3)  # another continuation
    assert cache.store.written == written + batch.batch


def test_batches_may_be_regrouped_and_only_what_is_missing_is_read(tmp_path: Path) -> None:
    adapter, batch, cache = adapter_of(), tiny_batch(), StateCache(StateStore(tmp_path))
    read = read_source(adapter, batch)
    cache.source(adapter, take(batch, [0, 2]))
    assert (cache.store.hits, cache.store.misses) == (0, 4)
    states = cache.source(adapter, batch)
    assert (cache.store.hits, cache.store.misses) == (4, 6)
    assert_same(states, read, BATCHED_STATES)
    assert cache.source(adapter, take(batch, [1])).context_hidden.shape[1] == 5  # no wider than its own example


def test_another_model_dtype_or_sequence_is_another_entry(tmp_path: Path) -> None:
    batch, store = tiny_batch(), StateStore(tmp_path)
    cache = StateCache(store)
    cache.source(adapter_of(), batch)
    other = adapter_of(seed=1)  # another revision of the weights
    assert_same(cache.source(other, batch), read_source(other, batch))
    assert store.hits == 0
    assert_same(cache.source(adapter_of(), batch), read_source(adapter_of(), batch))
    assert store.hits == 2 * batch.batch
    dynamic = adapter_of("llama", rope="dynamic")
    cache.source(dynamic, batch)
    hits = store.hits
    cache.context(dynamic, batch.context_ids, batch.context_lengths)  # its states depend on the length of [c; q]
    assert store.hits == hits


@pytest.mark.parametrize("damage", ("truncated", "changed", "renamed", "empty", "noise"))
def test_a_damaged_or_foreign_file_is_computed_again(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    adapter, batch = adapter_of(), tiny_batch()
    StateCache(StateStore(tmp_path)).source(adapter, batch)
    first, second, *_ = sorted(tmp_path.glob("*/*.safetensors"))
    data, entry = first.read_bytes(), StateStore(tmp_path).get(first.stem)
    changed = bytearray(data)
    changed[-3] ^= 1
    first.write_bytes({
        "truncated": data[:-20], "changed": bytes(changed), "renamed": second.read_bytes(), "empty": b"", "noise": os.urandom(400),
    }[damage])  # fmt: skip
    cache = StateCache(StateStore(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert_same(cache.source(adapter, batch), read_source(adapter, batch), BATCHED_STATES)
    again = StateStore(tmp_path).get(first.stem)
    assert cache.store.misses == 1 and again.keys() == entry.keys() and all(torch.equal(again[name], entry[name]) for name in entry)
    assert str(first) in caplog.text and "computed again" in caplog.text


def test_a_full_disk_stops_the_storing_once_and_a_later_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    adapter, batch, cache = adapter_of(), tiny_batch(), StateCache(StateStore(tmp_path))
    room, replace = [2], os.replace

    def full(*paths: Path) -> None:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= 1
        replace(*paths)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(files.os, "replace", full)
        for _ in range(2):
            assert_same(cache.source(adapter, batch), read_source(adapter, batch), BATCHED_STATES)
    assert cache.store.written == 2 and len(caplog.records) == 1 and "no space left" in caplog.text
    assert len(list(tmp_path.glob("*/*"))) == 2  # nothing half-written stays
    after = StateCache(StateStore(tmp_path))
    assert_same(after.source(adapter, batch), read_source(adapter, batch), BATCHED_STATES)
    assert (after.store.hits, after.store.written) == (2, 2 * batch.batch - 2)


def test_the_limit_counts_what_was_there_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    adapter, batch = adapter_of(), tiny_batch()
    StateCache(StateStore(tmp_path)).source(adapter, take(batch, [0]))
    size = sum(path.stat().st_size for path in tmp_path.glob("*/*"))
    cache = StateCache(StateStore(tmp_path, gigabytes=1.01 * size / 2**30))
    with caplog.at_level(logging.WARNING):
        assert_same(cache.source(adapter, batch), read_source(adapter, batch), BATCHED_STATES)
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 1.01 * size
    assert "training.state_cache_gigabytes" in caplog.text and len(caplog.records) == 1


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_narrow_storage_rounds_alike_the_first_and_the_second_time(dtype: str, tmp_path: Path) -> None:
    adapter, batch = adapter_of(), tiny_batch()
    first, second = (StateCache(StateStore(tmp_path, dtype=dtype)).source(adapter, batch) for _ in range(2))
    assert_same(second, first)
    exact = read_source(adapter, batch)
    assert first.keys_pre.dtype == torch.float32
    assert torch.equal(first.keys_pre, exact.keys_pre.to(getattr(torch, dtype)).float()) and not torch.equal(first.keys_pre, exact.keys_pre)


def test_float16_keeps_a_tensor_that_it_cannot_hold(tmp_path: Path) -> None:
    store = StateStore(tmp_path, dtype="float16")
    wide, narrow = torch.tensor([1.0, 1e6]), torch.tensor([1.0, 0.5])
    store.put("ab", {"wide": wide, "narrow": narrow})
    found = store.get("ab")
    assert found["wide"].dtype == torch.float32 and torch.equal(found["wide"], wide) and found["narrow"].dtype == torch.float16


def losses(config: Config, stage: str) -> list[dict]:
    """What the stage logged at each step, without the times."""
    lines = map(json.loads, (Path(config.paths.run) / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "time"} for line in lines if line["stage"] == stage]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Config]:
    """All stages without a cache, two epochs each; gives the configuration of a further run, which has the stages before one of them."""
    root = tmp_path_factory.mktemp("plain")
    changes = [f"training.{stage}.{field}" for stage in STAGES for field in ("epochs=2", "regroup=false", "examples=8", "batch=4")]
    changes += ["direction=tiny_qwen2", f"paths.data={root / 'data'}"]
    done = tiny(root, *changes)
    train(done)

    def further(results: Path, stage: str, *overrides: str) -> Config:
        config = tiny(results, *changes, f"stage={stage}", *overrides)
        for kind in KINDS[: KINDS.index(stage)]:
            shutil.copytree(Path(done.paths.run) / kind, Path(config.paths.run) / kind)
        return config

    further.done = done  # type: ignore[attr-defined]
    return further


@pytest.mark.parametrize("stage", STAGES)
def test_training_with_the_cache_is_training_without_it(
    stage: str, plain: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load_artifact(Path(plain.done.paths.run), stage).tensors
    ran: list[int] = []
    forward = ModelAdapter.forward
    monkeypatch.setattr(ModelAdapter, "forward", lambda self, *args, **more: ran.append(1) or forward(self, *args, **more))
    for attempt in ("first", "second"):
        ran.clear()
        config = plain(tmp_path / attempt, stage, f"paths.state_cache={tmp_path / 'states'}")
        found = train(config)[stage].tensors
        assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
        assert losses(config, stage) == losses(plain.done, stage) != []
        assert bool(ran) == (attempt == "first")  # the second run reads no training example with a frozen model
    store = json.loads((Path(config.paths.run) / "provenance.json").read_text())["state_cache"]
    assert store["computed"] == store["stored"] == 0 < store["read"]
