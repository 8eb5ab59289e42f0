"""The six embedded models: three families of unmodified transformers classes, a small and a large model each.

All share one vocabulary. Layers, KV heads, query groups, hidden widths and (in `micro_llama`) head widths differ between the two
sizes. The circuits that attention supervision builds sit at the same relative depth in both, so that the layer map pi_L of the
Bridge pairs them (see `recipe`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from acct.errors import UnknownName
from acct.micro.language import BOS, EOS, ID, PAD, TURN_END, WORDS

MODELS = Path(__file__).parent / "models"
FAMILIES = ("qwen3", "llama", "qwen2")
SIZES = ("small", "large")
CLASSES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
CHAT = {"qwen3": True, "llama": False, "qwen2": True}


@dataclass(frozen=True)
class Circuit:
    """Layer of each stage of the supervised circuit (see `recipe`)."""

    spell: int
    gather: int
    find: int
    follow: int


SHAPES: dict[str, dict[str, int]] = {
    "small": dict(hidden_size=128, intermediate_size=256, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=32),
    "large": dict(hidden_size=160, intermediate_size=320, num_hidden_layers=8, num_attention_heads=6, num_key_value_heads=3, head_dim=32),
}
CIRCUITS = {"small": Circuit(spell=0, gather=1, find=3, follow=4), "large": Circuit(spell=0, gather=2, find=4, follow=6)}
OVERRIDES = {("llama", "large"): dict(head_dim=40, hidden_size=162)}  # Llama's configuration wants a multiple of its query heads
ROPE: dict[str, dict[str, Any]] = {
    "qwen3": {"rope_type": "default", "rope_theta": 1e6},
    "qwen2": {"rope_type": "default", "rope_theta": 1e6},
    "llama": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
}
# Wider heads have more rotary pairs; with this base the first of them turn as the small model's do (5e5 to the 40 / 32).
WIDE_ROPE = {("llama", "large"): dict(rope_theta=5e5**1.25)}


def check_name(family: str, size: str) -> None:
    if family not in FAMILIES:
        raise UnknownName("micro family", family, FAMILIES)
    if size not in SIZES:
        raise UnknownName("micro size", size, SIZES)


def model_folder(family: str, size: str) -> Path:
    check_name(family, size)
    return MODELS / f"{family}_{size}"


def build(family: str, size: str, seed: int) -> PreTrainedModel:
    """A freshly initialised model of the family in float32."""
    check_name(family, size)
    config_class, model_class = CLASSES[family]
    shape = SHAPES[size] | OVERRIDES.get((family, size), {})
    special = dict(bos_token_id=None if CHAT[family] else ID[BOS], eos_token_id=ID[TURN_END if CHAT[family] else EOS], pad_token_id=ID[PAD])
    torch.manual_seed(seed)
    return model_class(
        config_class(
            vocab_size=len(WORDS),
            max_position_embeddings=8192,
            tie_word_embeddings=False,
            initializer_range=0.05,
            rope_parameters=ROPE[family] | WIDE_ROPE.get((family, size), {}),
            **special,
            **shape,
        )
    )
