"""The one place for what transformers 5.x renames or moves between versions, and for reading its configuration objects.

Seen differences: the cache argument of `forward` (`past_key_values`, later `cache`), decoder layers that return a tensor or a
tuple, rotary settings in `rope_parameters` (once `rope_theta` and `rope_scaling`), the mask keyword arguments. Nothing here
changes the process: what is switched is switched back at the end of its `with` block.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging as transformers_logging

from acct.errors import ModelError

STOCK_ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
_VOLATILE = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures", "use_cache", "_attn_implementation")


def cache_argument(model: nn.Module) -> str:
    """Name of the forward argument that takes a Cache: "past_key_values", or "cache" where that has replaced it."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names and "past_key_values" not in names else "past_key_values"


def first_tensor(output: Any) -> Tensor:
    """The hidden state that a module returned, alone or as the first entry of a tuple."""
    return output[0] if isinstance(output, tuple) else output


def prefilled_cache(keys: Tensor, values: Tensor) -> DynamicCache:
    """A native cache that already holds keys and values [batch, layer, head, seq, dim], keys after RoPE."""
    cache = DynamicCache()
    for layer in range(keys.shape[1]):
        cache.update(keys[:, layer], values[:, layer], layer)
    return cache


@contextmanager
def stock_attention(model: PreTrainedModel, name: str | None = None) -> Iterator[None]:
    """Run `model` with one of transformers' own attention functions inside the block, and give back what was set before.

    Args:
        name: the function to use; None keeps a stock one and replaces only a foreign one (a mount) by "sdpa".
    """
    before = model.config._attn_implementation
    wanted = name or (before if before in STOCK_ATTENTION else "sdpa")
    if wanted == before:
        yield
        return
    model.config._attn_implementation = wanted
    try:
        yield
    finally:
        model.config._attn_implementation = before


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bars of transformers inside the block."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def rope_settings(config: Any) -> dict[str, Any]:
    """Rotary settings of a configuration object, with `rope_type` and `rope_theta` in them.

    Raises:
        ModelError: no theta is stated, or the kind is not one that the interface knows.
    """
    settings = dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    settings.setdefault("rope_type", settings.get("type", "default"))
    if settings.get("rope_theta") is None and getattr(config, "rope_theta", None) is not None:
        settings["rope_theta"] = config.rope_theta
    theta = settings.get("rope_theta")
    if not isinstance(theta, int | float) or not 0 < theta < float("inf"):
        raise ModelError(
            f"the model's configuration must state a positive rope_theta (in rope_parameters), got {theta!r}. "
            "No default is assumed: a wrong theta would rotate keys to wrong positions without any other sign."
        )
    if settings["rope_type"] not in ROPE_KINDS:
        raise ModelError(f"RoPE kind {settings['rope_type']!r} is not supported. Known: {', '.join(ROPE_KINDS)}.")
    return settings


def stated_thetas(raw: Mapping[str, Any]) -> set[float]:
    """The rotary bases that a raw config.json states, one where it is sound (transformers would fill in 10000 without a word)."""
    places = (raw, raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {})
    return {float(place["rope_theta"]) for place in places if place.get("rope_theta") is not None}


def inverse_frequencies(config: Any, head_dim: int, device: torch.device, total_lengths: Tensor | None = None) -> tuple[Tensor, float]:
    """Inverse frequencies in fp32 as the configuration defines them, and the factor on cos and sin.

    Args:
        total_lengths: int64 [..., 1], only for "dynamic": tokens of the whole sequence. None or a length inside the native
            window gives the frequencies of the start.
    Returns:
        [dim / 2], or [..., dim / 2] for "dynamic" with lengths; attention scaling (1 but for YaRN).
    """
    settings = rope_settings(config)
    if settings["rope_type"] == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(device=device, dtype=torch.float) / head_dim
        return 1.0 / (settings["rope_theta"] ** exponents), 1.0
    function = ROPE_INIT_FUNCTIONS[settings["rope_type"]]
    start, scaling = function(config, device)
    if settings["rope_type"] != "dynamic" or total_lengths is None:
        return start, scaling
    grown, scaling = function(config, device, seq_len=total_lengths)
    return torch.where(total_lengths > config.max_position_embeddings, grown, start), scaling


def stable_config(config: Any) -> dict[str, Any]:
    """The configuration as a dictionary without what changes between loads of the same model."""
    return {key: value for key, value in sorted(config.to_dict().items()) if key not in _VOLATILE}
