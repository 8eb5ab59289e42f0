"""Random models of true geometry, and windows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from acct.errors import ConfigError, UnknownName
from acct.latency.stages import Receiver, prompt, target_prefill
from acct.latency.weights import STRETCH, fill_normal, random_model, settings_of, timed_model
from acct.models.published import published
from tests.tiny import tiny_config

WINDOW = 64


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder with the configuration of a tiny Qwen3, embedding tied to the head, as a hub would hold it."""
    config = tiny_config("qwen3", "target", tie_word_embeddings=True, max_position_embeddings=WINDOW).to_dict()
    parameters = config.pop("rope_parameters")
    config |= {"rope_theta": parameters["rope_theta"], "rope_scaling": None}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_random_model_is_the_published_one_but_for_its_weights(folder: str, dtype: str) -> None:
    known = published(folder)
    adapter = random_model(settings_of(folder, 10), dtype, "cpu", seed=3)
    assert adapter.geometry == known.geometry and sum(one.numel() for one in adapter.model.parameters()) == known.parameters
    assert adapter.dtype == getattr(torch, dtype) and adapter.parts.rotary.inv_freq.dtype == torch.float32
    assert adapter.parts.head.weight is adapter.parts.embedding.weight, "tied as the configuration says"
    again, other = (random_model(settings_of(folder, 10), dtype, "cpu", seed=seed) for seed in (3, 4))
    assert torch.equal(adapter.parts.head.weight, again.parts.head.weight)
    assert not torch.equal(adapter.parts.head.weight, other.parts.head.weight)
    cache = target_prefill(adapter, prompt(61, 10, 1, torch.Generator().manual_seed(0)).context_ids)
    assert cache.get_seq_length() == 10 and bool(torch.isfinite(cache.layers[0].keys.float()).all())


def test_a_receiver_turns_keys_as_the_model_does(folder: str) -> None:
    settings = settings_of(folder, 10)
    adapter, receiver = random_model(settings, "float32", "cpu"), Receiver.of(settings, torch.float32, torch.device("cpu"))
    keys, places = torch.randn(30, adapter.geometry.head_dim), torch.arange(30)
    assert torch.equal(receiver.rotate(keys, places), adapter.rotate(keys, places)) and receiver.geometry == adapter.geometry


def test_a_length_beyond_the_window_is_an_error_or_yarn(folder: str) -> None:
    assert settings_of(folder, WINDOW)["rope_theta"] == 2000.0
    with pytest.raises(ConfigError, match=r"reads at most 64 tokens.*needs 65.*latency.yarn=true"):
        settings_of(folder, WINDOW + 1)
    stretched = random_model(settings_of(folder, 100, yarn=True), "float32", "cpu")
    assert stretched.rotary.kind == "yarn" and stretched.rotary.theta == 2000.0 and stretched.rotary.scaling > 1
    assert stretched.model.config.max_position_embeddings == 2 * WINDOW
    with pytest.raises(UnknownName):
        settings_of("Qwen/Qwen3-5B", 10)
    with pytest.raises(ConfigError, match="CUDA devices are visible"):
        timed_model(folder, 10, "random", "float32", f"cuda:{torch.cuda.device_count()}", 0)


def test_large_tensors_repeat_what_was_drawn() -> None:
    filled = fill_normal(torch.empty(2, STRETCH // 2 + 5), torch.Generator().manual_seed(0), std=2.0).view(-1)
    assert torch.equal(filled[STRETCH:], filled[:10]) and float(filled.std()) == pytest.approx(2.0, rel=0.01)
