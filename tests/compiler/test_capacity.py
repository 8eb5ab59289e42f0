"""The preset by hand for known pairs, closed forms against instantiated modules, limits and overrides."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from acct.allocator.allocator import Allocator
from acct.cartographer import Cartographer
from acct.compiler.bridge import Bridge
from acct.compiler.capacity import CapacityPreset, aligned, check_limits, count_parameters, parameter_counts, preset
from acct.compiler.residual import Residual
from acct.errors import ConfigError
from acct.geometry import ModelGeometry, PairGeometry
from tests.compiler.states import PAIR

MODELS = {
    "qwen3_4b": ModelGeometry("qwen3", 36, 8, 32, 128, 2560, 151936),
    "qwen3_8b": ModelGeometry("qwen3", 36, 8, 32, 128, 4096, 151936),
    "llama_3b": ModelGeometry("llama", 28, 8, 24, 128, 3072, 128256),
    "llama_8b": ModelGeometry("llama", 32, 8, 32, 128, 4096, 128256),
    "qwen25_7b": ModelGeometry("qwen2", 28, 4, 28, 128, 3584, 152064),
    "qwen25_32b": ModelGeometry("qwen2", 64, 8, 40, 128, 5120, 152064),
    "micro_small": ModelGeometry("qwen3", 6, 2, 4, 24, 128, 220),
    "micro_large": ModelGeometry("qwen3", 8, 4, 8, 32, 160, 220),
}
PAIRS = [("qwen3_4b", "qwen3_8b"), ("llama_3b", "llama_8b"), ("qwen25_7b", "qwen25_32b"), ("micro_small", "micro_large")]
DIRECTIONS = PAIRS + [names[::-1] for names in PAIRS]
# w_M = w_W, d_M, f_W, D worked by hand: D~/8 = 416, 448, 544, 18
WIDTHS = {"qwen3": (416, 128, 1120, 2), "llama": (448, 128, 1216, 2), "qwen25": (544, 160, 1472, 3), "micro": (32, 32, 96, 2)}


def pair(direction: tuple[str, str]) -> PairGeometry:
    return PairGeometry(MODELS[direction[0]], MODELS[direction[1]])


def counted(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("direction", DIRECTIONS, ids="_to_".join)
def test_closed_forms_equal_instantiated_counts(direction: tuple[str, str]) -> None:
    geometry = pair(direction)
    capacity = preset(geometry)
    widths = WIDTHS[direction[0].split("_")[0]]
    assert (capacity.width, capacity.attention_width, capacity.feed_forward_width, capacity.depth) == widths
    assert (capacity.model_width, capacity.embedding_width, capacity.latents) == (widths[0], 32, 64)
    shapes = capacity.cartographer(), capacity.residual(geometry)
    counts = parameter_counts(geometry, *shapes)
    with torch.device("meta"):
        modules = Cartographer(geometry, shapes[0]), Allocator(geometry.units), Residual(shapes[1]), Bridge(geometry)
    assert [counted(module) for module in modules] == [counts.cartographer, counts.allocator, counts.residual, counts.bridge]
    assert [count_parameters(module) for module in modules] == [counted(module) for module in modules]
    assert counts.compiler == counts.residual + counts.bridge and counts.allocator == geometry.units
    assert counts.total == counts.gradient_optimised + counts.bridge
    assert check_limits(capacity, counts).within_limits


def test_counts_worked_by_hand() -> None:
    geometry = pair(("qwen3_4b", "qwen3_8b"))
    counts = parameter_counts(geometry, preset(geometry).cartographer(), preset(geometry).residual(geometry))
    assert counts.bridge == 2 * 288 * (128 * 128 + 128)
    trunk = 4 * 2560 * 416 + 64 * 416 + 2 * (12 * 416**2 + 6 * 416 * 1120 + 7 * 416) + 416 + 4 * 416
    assert counts.residual == trunk + 2 * 288 * (416 * 128 + 128)


@pytest.mark.parametrize("options", [{"input_bias": True}, {"memory_norm": False}, {"input_norm": "rms"}, {"head_width": 16}])
def test_options_are_counted(options: dict[str, object]) -> None:
    shape = preset(PAIR, depth=3, latents=7).residual(PAIR, **options)
    assert shape.parameters() == counted(Residual(shape))


def test_alignment_is_exact() -> None:
    assert [aligned(x) for x in (1, 32, 33)] == [32, 32, 64]
    assert aligned(6656, 16) == 416 and aligned(8 * 416, 3) == 1120 and aligned(96, 3) == 32 and aligned(97, 3) == 64
    assert preset(PAIR).depth == 2
    deep = ModelGeometry("qwen2", 1, 1, 1, 8, 5120, 5)
    assert preset(PairGeometry(deep, PAIR.target)).depth == preset(PairGeometry(PAIR.source, deep)).depth == 3


def test_overrides_are_recorded_with_the_outcome_and_limits_raise() -> None:
    capacity = preset(PAIR, width=64, depth=4, latents=None)
    assert capacity.overrides == {"width": 64, "depth": 4}
    assert (capacity.width, capacity.feed_forward_width, capacity.depth, capacity.latents) == (64, 192, 4, 64)
    assert isinstance(capacity, CapacityPreset)
    counts = parameter_counts(PAIR, capacity.cartographer(), capacity.residual(PAIR))
    record = check_limits(capacity, counts).record()
    assert json.loads(json.dumps(record)) == record
    assert record["overrides"] == {"width": 64, "depth": 4} and record["within_limits"] and record["counts"]["residual"] == counts.residual
    with pytest.raises(ConfigError, match=r"residual has .* limit is 1,000 .*'width': 64.*compiler.limit"):
        check_limits(capacity, counts, residual_limit=1000)
    with pytest.raises(ConfigError, match=r"cartographer has .*cartographer.limit"):
        check_limits(capacity, counts, cartographer_limit=1000)
    assert not check_limits(capacity, counts, residual_limit=1000, strict=False).record()["within_limits"]
    with pytest.raises(ConfigError, match="widht=3"):
        preset(PAIR, widht=3)
    with pytest.raises(ConfigError, match="depth=0"):
        preset(PAIR, depth=0)
