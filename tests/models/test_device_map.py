"""A target spread over devices by transformers' own device_map: the same states and logits, everything brought together in one place.

Without a second device, PyTorch's "meta" stands for one: operations refuse to mix it with the CPU.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from acct.cache import extend, mounted
from acct.compiler.compiler import rotate_kv
from acct.config.root import compose
from acct.errors import ConfigError
from acct.models.adapter import Capture
from acct.models.pair import load_model, load_pair
from acct.models.registry import adapter_for
from acct.mounted_context import GatedContext, NativeHistory, NoContext, PackedContext, SlotIndex, gated_contexts, packed_contexts
from acct.native import read_native
from acct.selection import full_selection, gather_native
from acct.types import GatedKV, SparseKV
from tests.models.test_pair import saved
from tests.tiny import FAMILIES, tiny_batch, tiny_model

CPU, META = torch.device("cpu"), torch.device("meta")


def split(adapter_layers: int) -> dict[str, str]:
    """Every module by name, as for two devices, all on the CPU."""
    layers = {f"model.layers.{index}": "cpu" for index in range(adapter_layers)}
    return {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "cpu", "lm_head": "cpu", **layers}


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_mapped_target_gives_the_same_states_and_mounted_logits(family: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, family, "target")
    plain, batch = load_model(folder), tiny_batch(0, (9, 4), (5, 3))
    for device_map in ({"": "cpu"}, split(plain.geometry.layers)):
        mapped = load_model(folder, device_map=device_map)
        assert mapped.device.type == "cpu" and mapped.layer_devices == (torch.device("cpu"),) * plain.geometry.layers
        logits = []
        for adapter in (plain, mapped):
            native = read_native(adapter, batch)
            selection = full_selection(batch.context_lengths, adapter.geometry.layers, adapter.geometry.kv_heads)
            kv = rotate_kv(adapter, SparseKV(selection, *gather_native(selection, native), rotated=False))
            with mounted(adapter, kv) as cache:
                logits.append(extend(adapter, cache, batch.query_ids, batch.query_lengths))
        assert torch.equal(*logits), "mounted native states"
        assert mapped.fingerprint == plain.fingerprint


def test_only_the_target_of_a_pair_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from acct.models import pair as module

    source, target = (saved(tmp_path / size, size=size) for size in ("source", "target"))
    asked = {}
    original = module.AutoModelForCausalLM.from_pretrained

    def noted(folder: Path, **arguments: object) -> object:
        asked[Path(folder).name] = arguments.get("device_map")
        return original(folder, **arguments)

    monkeypatch.setattr(module.AutoModelForCausalLM, "from_pretrained", noted)
    load_pair(source, target, target_device_map={"": "cpu"})
    assert asked == {"source": None, "target": {"": "cpu"}}


def test_recorded_states_of_several_devices_are_stacked_on_the_first() -> None:
    adapter = adapter_for(tiny_model("qwen3"))
    adapter.parts.embedding.weight = torch.nn.Parameter(torch.empty(11, 20, device=META))
    record = {
        **{("hidden", index): torch.empty(1, 4, 20, device=device) for index, device in enumerate((META, META, CPU))},
        **{(name, layer): torch.empty(1, 2, 4, 8, device=(META, CPU)[layer]) for name in ("keys", "values") for layer in (0, 1)},
    }
    states = adapter._collect(record, Capture(hidden=True, keys=True), None)
    assert states.keys_pre.shape == (1, 2, 2, 4, 8) and states.keys_pre.device == states.values.device == META
    assert {hidden.device for hidden in states.hidden} == {META}


@pytest.mark.parametrize("kind", ["packed", "gated", "nothing"])
@torch.no_grad()
def test_a_layer_attends_where_it_lies(kind: str) -> None:
    """History on one device, the layer's states on another; a second step over what the first appended."""
    history = NativeHistory(torch.zeros(1, 0, dtype=torch.bool), torch.zeros(1, dtype=torch.int64))
    keys, values = (torch.empty(6, 8, device=META) for _ in range(2))
    if kind == "packed":
        place = torch.arange(6, device=META)
        context = PackedContext(keys, values, SlotIndex(torch.empty(1, 2, 3, dtype=torch.bool, device=META), place))
    elif kind == "gated":
        hard, gates = torch.empty(1, 2, 3, dtype=torch.bool, device=META), torch.empty(1, 2, 3, device=META)
        context = GatedContext(keys.view(1, 2, 3, 8), values.view(1, 2, 3, 8), hard, gates)
    else:
        context = NoContext()
    for width, native in ((4, 4), (1, 5)):
        history.begin(torch.ones(1, dtype=torch.int64), width)
        query, own = torch.empty(1, 4, width, 8, device=META), torch.empty(1, 2, native, 8, device=META)
        out = context.attend(query, own, own, history, None)
        assert out.shape == (1, 4, width, 8) and out.device == META
        history.end()


def test_states_are_mounted_on_the_device_of_their_layer() -> None:
    lengths, devices = torch.tensor([3, 2]), (CPU, META)
    selection = full_selection(lengths, 2, 2)
    kv = SparseKV(selection, *(torch.arange(20 * 4.0).view(20, 4) for _ in range(2)), rotated=True)
    first, second = packed_contexts(kv, torch.float32, devices)
    assert [context.keys.device for context in (first, second)] == list(devices) and second.slot_index.valid.device == META
    assert torch.equal(first.values, kv.values[:10]) and second.values.shape == (10, 4)
    ones = torch.ones(2, 4, 3)
    gated = GatedKV(lengths, torch.ones(2, 4, 3, 8), torch.ones(2, 4, 3, 8), ones.bool(), ones * 0)
    parts = gated_contexts(gated, torch.float32, devices)
    assert [context.log_gates.device for context in parts] == [context.keys.device for context in parts] == list(devices)
    assert parts[0].hard[1, 0].tolist() == [True, True, False], "beyond a row's length"


def test_what_cannot_be_placed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.target_device_map must be one of auto, balanced, .*; got 'spread'"):
        compose(["runtime.target_device_map=spread"])
    assert compose(["runtime.target_device_map={model.norm: 0}"]).runtime.target_device_map == {"model.norm": 0}
    folder = saved(tmp_path)
    with pytest.raises(ConfigError, match=r"device 'cuda:7' is not here"):
        load_model(folder, device_map={"": 7})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs accelerate, which is not installed"):
        load_model(folder, device_map="auto")
