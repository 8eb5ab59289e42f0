"""Models of true geometry with random weights: they time as trained ones do, and nothing is downloaded (spec 9).

A model is built without memory and then filled with one repeated stretch of normal numbers. Rotary frequencies are computed afresh in
float32 whatever the model's dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from acct.errors import ConfigError
from acct.models import compat
from acct.models.adapter import ModelAdapter
from acct.models.pair import checked_device, checked_dtype, load_model
from acct.models.published import configuration, weightless
from acct.models.registry import adapter_for

STRETCH = 1 << 22
"""Numbers that are drawn; larger tensors repeat them."""


@torch.no_grad()
def fill_normal(tensor: Tensor, generator: torch.Generator, std: float = 1.0) -> Tensor:
    """Fill a contiguous tensor in place from the generator (on the CPU), repeating STRETCH numbers where it is larger; returns it."""
    flat = tensor.view(-1)
    drawn = torch.randn(min(STRETCH, len(flat)), generator=generator).mul_(std).to(device=tensor.device, dtype=tensor.dtype)
    for first in range(0, len(flat), STRETCH):
        part = flat[first : first + STRETCH]
        part.copy_(drawn[: len(part)])
    return tensor


def settings_of(name: str, tokens: int, yarn: bool = False) -> dict[str, Any]:
    """The configuration of a model for sequences of `tokens`.

    Args:
        name: a published name or a local folder. yarn: stretch the window with YaRN where `tokens` is beyond it.
    Raises:
        ConfigError: beyond the window without `yarn`.
    """
    settings = dict(configuration(name))
    window = int(settings["max_position_embeddings"])
    if tokens <= window:
        return settings
    if not yarn:
        raise ConfigError(
            f"{name} reads at most {window} tokens (max_position_embeddings), a sample with its query needs {tokens}. "
            "Take shorter latency.context_tokens, or latency.yarn=true, which stretches the window."
        )
    theta = settings.get("rope_theta") or (settings.get("rope_parameters") or {}).get("rope_theta")
    scaling = {"rope_type": "yarn", "factor": float(-(-tokens // window)), "original_max_position_embeddings": window}
    for old in ("rope_scaling", "rope_parameters"):
        settings.pop(old, None)
    settings["rope_parameters"] = {**scaling, "rope_theta": theta}
    settings["max_position_embeddings"] = window * -(-tokens // window)
    return settings


@torch.no_grad()
def random_model(settings: dict[str, Any], dtype: str | torch.dtype, device: str | torch.device, seed: int = 0) -> ModelAdapter:
    """A frozen model of a configuration with random weights.

    Args:
        settings: from `settings_of`. dtype: of weights and states. device: where it is built.
    Raises:
        ConfigError: an unknown dtype or a device that is not here.
    """
    dtype, device = checked_dtype(dtype), checked_device(device)
    model = weightless(settings, dtype)
    model.to_empty(device=device)
    model.tie_weights()
    generator = torch.Generator().manual_seed(seed)
    spread = float(getattr(model.config, "initializer_range", 0.02))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1)
        elif name.endswith(".bias"):
            parameter.zero_()
        else:
            fill_normal(parameter, generator, spread)
    restore_rotary(model, device)
    model.requires_grad_(False).eval()
    return adapter_for(model, lambda: f"random weights, seed {seed}")


def restore_rotary(model: nn.Module, device: torch.device) -> None:
    """Rotary frequencies of a model that was built without memory, in float32 on `device`.

    Raises:
        ConfigError: other buffers, whose content is not known.
    """
    for name, module in model.named_modules():
        if hasattr(module, "inv_freq"):
            found, module.attention_scaling = compat.inverse_frequencies(module.config, _head_width(module.config), device)
            module.inv_freq, module.original_inv_freq = found, found.clone()
        elif list(module.named_buffers(recurse=False)):
            raise ConfigError(f"{name} has buffers that random weights do not fill. Use latency.weights=hub.")


def _head_width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def timed_model(
    name: str, tokens: int, weights: str, dtype: str, device: str, seed: int, yarn: bool = False, revision: str | None = None,
    device_map: str | dict[str, Any] | None = None,
) -> ModelAdapter:  # fmt: skip
    """The model that is timed.

    Args:
        name: hub id or folder. tokens: longest sequence. weights: "random" or "hub" (a folder's or the hub's own files).
        device_map: spreads hub weights over devices in place of `device`.
    """
    if weights == "hub":
        adapter = load_model(name, dtype, device, revision, device_map)
        window = int(adapter.model.config.max_position_embeddings)
        if tokens > window:
            raise ConfigError(
                f"{name} reads at most {window} tokens, a sample with its query needs {tokens}. Take shorter latency.context_tokens; "
                "latency.yarn applies to latency.weights=random."
            )
        return adapter
    return random_model(settings_of(name, tokens, yarn), dtype, device, seed)
