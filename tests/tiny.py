"""Tiny real decoders with random weights, tiny token batches and a tiny tokenizer, for every test.

The two sizes of a family differ on every axis (layers, hidden, KV heads, queries per head, head width, RoPE base), so that a
swapped axis cannot pass. Weights are large enough for attention to be far from uniform, norms and biases are random. Nothing
here changes the process's random state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from acct.types import TokenBatch

if TYPE_CHECKING:
    from acct.models.pair import Pair

FAMILIES = ("llama", "qwen2", "qwen3")
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
VOCABULARY = 61
NATIVE_WINDOW = 24  # max_position_embeddings of the scaled RoPE kinds: batches of more tokens leave the native window

_CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
_SIZES: dict[str, dict[str, Any]] = {
    "source": {
        "num_hidden_layers": 2,
        "hidden_size": 40,
        "num_key_value_heads": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
        "intermediate_size": 56,
        "rope_theta": 500.0,
    },
    "target": {
        "num_hidden_layers": 3,
        "hidden_size": 72,
        "num_key_value_heads": 3,
        "num_attention_heads": 9,
        "head_dim": 16,
        "intermediate_size": 88,
        "rope_theta": 2000.0,
    },
}


def rope_parameters(kind: str, theta: float) -> dict[str, Any]:
    """The `rope_parameters` dictionary of one RoPE kind, with values that matter already at tens of tokens."""
    extra: dict[str, dict[str, Any]] = {
        "default": {},
        "linear": {"factor": 2.5},
        "dynamic": {"factor": 3.0},
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": NATIVE_WINDOW},
        "yarn": {"factor": 4.0, "original_max_position_embeddings": NATIVE_WINDOW},
    }
    return {"rope_type": kind, "rope_theta": theta, **extra[kind]}


def tiny_config(family: str, size: str = "source", rope: str | dict[str, Any] | None = None, **overrides: Any) -> Any:
    """Configuration of a tiny model; `overrides` are config fields of transformers (and `rope_theta`)."""
    fields = {**_SIZES[size], "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **overrides}
    theta = fields.pop("rope_theta")
    if family == "qwen2":  # Qwen2 has no head_dim of its own: hidden / heads
        fields["hidden_size"] = overrides.get("hidden_size", fields["num_attention_heads"] * fields["head_dim"])
        fields.pop("head_dim")
    kind = rope or "default"
    fields["rope_parameters"] = dict(kind) if isinstance(kind, dict) else rope_parameters(kind, theta)
    scaled = fields["rope_parameters"]["rope_type"]
    window = {"dynamic": NATIVE_WINDOW, "yarn": 4 * NATIVE_WINDOW, "llama3": 8 * NATIVE_WINDOW}.get(scaled, 4096)
    fields.setdefault("max_position_embeddings", window)
    fields.setdefault("tie_word_embeddings", False)
    return _CLASSES[family][0](initializer_range=0.2, **fields)


def tiny_model(
    family: str, seed: int = 0, size: str = "source", rope: str | dict[str, Any] | None = None, **overrides: Any
) -> PreTrainedModel:
    """A frozen fp32 model in eval mode: LlamaForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM with random weights.

    Args:
        family: "llama", "qwen2" or "qwen3". seed: of the weights. size: "source" or "target"; all axes differ.
        rope: None (default), one of ROPE_KINDS, or a `rope_parameters` dictionary.
        overrides: config fields, e.g. `num_hidden_layers=1`, `vocab_size=97`, `rope_theta=1e4`.
    """
    config = tiny_config(family, size, rope, **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 * seed + (17 if size == "target" else 0) + FAMILIES.index(family))
        model = _CLASSES[family][1](config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(0.0, 0.5)
                elif name.endswith(("q_norm.weight", "k_norm.weight")):
                    parameter.normal_(1.4, 0.3)
                elif "norm" in name:
                    parameter.normal_(1.0, 0.25)
                elif name.endswith("k_proj.weight") and family != "qwen3":
                    parameter.mul_(0.4 if size == "target" else 0.9)
    return model.eval().requires_grad_(False)


def tiny_pair(family: str = "qwen3", seed: int = 0, rope: str | dict[str, Any] | None = None) -> Pair:
    """A directed pair source -> target on the CPU, with the tiny tokenizer."""
    from acct.models.pair import Pair
    from acct.models.registry import adapter_for

    source, target = (adapter_for(tiny_model(family, seed, size, rope)) for size in ("source", "target"))
    return Pair.of(source, target, tiny_tokenizer())


def tiny_batch(
    seed: int = 0, context: Sequence[int] = (11, 5, 17), query: Sequence[int] = (4, 6, 3), vocabulary: int = VOCABULARY
) -> TokenBatch:
    """Random ids with different N and Q in each row, right-padded with zeros.

    Args:
        context: N of each row. query: Q of each row. vocabulary: ids are drawn from [3, vocabulary).
    """
    generator = torch.Generator().manual_seed(seed)

    def padded(lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = torch.tensor(list(lengths), dtype=torch.int64)
        width = max(int(sizes.max()), 1)
        ids = torch.randint(3, vocabulary, (len(sizes), width), generator=generator)
        return ids * (torch.arange(width) < sizes[:, None]), sizes

    return TokenBatch(*padded(context), *padded(query))


def one_row(batch: TokenBatch, row: int) -> TokenBatch:
    """Row `row` alone, without padding: the single-example oracle of every batched function."""
    n, q = int(batch.context_lengths[row]), int(batch.query_lengths[row])
    return TokenBatch(
        batch.context_ids[row : row + 1, :n],
        batch.context_lengths[row : row + 1],
        batch.query_ids[row : row + 1, :q],
        batch.query_lengths[row : row + 1],
    )


def tiny_tokenizer(vocabulary: int = VOCABULARY, names: dict[int, str] | None = None) -> PreTrainedTokenizerFast:
    """A word-level tokenizer: ids 0-3 are <pad>, <bos>, <eos>, <unk>, id i is the word "w<i>". `names` renames some ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {0: "<pad>", 1: "<bos>", 2: "<eos>", 3: "<unk>", **{i: f"w{i}" for i in range(4, vocabulary)}, **(names or {})}
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in words.items()}, unk_token=words[3]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=words[0], bos_token=words[1], eos_token=words[2], unk_token=words[3]
    )
