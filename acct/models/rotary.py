"""Rotation of keys and queries by the model's own rotary module (spec 4, Mount; paper A.2.3).

    rotate(x, i) = x cos(i w) + half(x) sin(i w),   half([a; b]) = [-b; a],   w the inverse frequencies in fp32

cos and sin come from the model's module, attention scaling (YaRN) included, so that a rotation repeats the model's own bit for
bit. The one exception is "dynamic" NTK scaling, whose w depends on the length of the whole sequence: transformers takes the
longest row of the batch and keeps it for later, shorter calls; here every row has the frequencies of its own length, stated as
`total_lengths`, and `Rotary.lengths` makes a forward pass of the model use the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from acct.errors import ModelError
from acct.models import compat

PACKED_BLOCK = 1 << 12
"""Packed slots rotated at once on the CPU, where they stay in cache."""


def half(x: Tensor) -> Tensor:
    """[a; b] -> [-b; a] along the last axis."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def turn_(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [slot, dim] rotated by cos and sin [slot, dim], bit for bit as `Rotary.rotate`: cos becomes the result, sin is used up."""
    (first, second), (left, right) = x.chunk(2, dim=-1), sin.chunk(2, dim=-1)
    left.mul_(second).neg_()
    right.mul_(first)
    return cos.mul_(x).add_(sin)


class Rotary:
    """The rotary embedding of one model.

    Attributes:
        kind: "default", "linear", "dynamic", "llama3" or "yarn". theta: base. scaling: factor on cos and sin.
    """

    def __init__(self, module: nn.Module, config: Any, head_dim: int):
        """Raises ModelError when the configuration names no theta, or the module does not hold the frequencies it names."""
        settings = compat.rope_settings(config)
        self.module, self.config, self.head_dim = module, config, head_dim
        self.kind: str = settings["rope_type"]
        self.theta = float(settings["rope_theta"])
        found: Tensor = module.inv_freq
        if found.dtype != torch.float32:
            raise ModelError(
                f"rotary inverse frequencies must be float32, got {found.dtype}. "
                "Load the model with dtype=..., never cast it with model.to(dtype): that rounds them."
            )
        wanted, self.scaling = compat.inverse_frequencies(config, head_dim, found.device)
        if 2 * found.shape[-1] != head_dim or wanted.shape != found.shape:
            raise ModelError(f"rotary width must equal the head width {head_dim}, got {2 * found.shape[-1]} (partial rotation).")
        if self.kind != "dynamic" and not found.is_meta and not torch.allclose(found, wanted, rtol=1e-5, atol=0.0):
            worst = float((found / wanted - 1).abs().max())
            raise ModelError(
                f"the rotary module does not hold the frequencies of {self.kind!r} RoPE with theta {self.theta:g}: relative difference "
                f"{worst:.2g}. The configuration was changed after the model was built; build or load it again."
            )

    def cos_sin(self, positions: Tensor, dtype: torch.dtype, total_lengths: Tensor | int | None = None) -> tuple[Tensor, Tensor]:
        """cos and sin at `positions`, shape positions.shape + [dim], in `dtype`, scaling included."""
        if self.kind == "dynamic":
            return self._dynamic(positions, dtype, total_lengths)
        flat = positions.reshape(1, -1)
        cos, sin = self.module(torch.empty(0, dtype=dtype, device=positions.device), flat)  # [1, places, dim]
        shape = (*positions.shape, self.head_dim)
        return cos.reshape(shape).to(positions.device), sin.reshape(shape).to(positions.device)

    @torch.no_grad()
    def _dynamic(self, positions: Tensor, dtype: torch.dtype, total_lengths: Tensor | int | None) -> tuple[Tensor, Tensor]:
        if total_lengths is None:
            total_lengths = positions.amax(dim=-1, keepdim=True) + 1 if positions.numel() else 1
        totals = torch.as_tensor(total_lengths, device=positions.device)
        totals = totals.expand(torch.broadcast_shapes(totals.shape, (1,) * positions.dim()))
        frequencies, scaling = compat.inverse_frequencies(self.config, self.head_dim, positions.device, totals[..., None])
        angles = positions[..., None].float() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)

    def rotate(self, x: Tensor, positions: Tensor, total_lengths: Tensor | int | None = None) -> Tensor:
        """x [..., seq, dim] before RoPE, rotated to int64 positions that broadcast to [..., seq]; the dtype of x is kept."""
        if x.dim() == 2 and x.shape[0] and self.kind != "dynamic" and not (torch.is_grad_enabled() and x.requires_grad):
            return self._rotate_packed(x, positions.to(x.device).expand(x.shape[0]))
        cos, sin = self.cos_sin(positions.to(x.device), x.dtype, total_lengths)
        return x * cos + half(x) * sin

    def _rotate_packed(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [slot, dim]: cos and sin are computed once for each position, and slots are written block by block."""
        cos, sin = self.table(int(positions.max()) + 1, x.dtype, x.device)
        rotated = torch.empty_like(x)
        step = PACKED_BLOCK if x.device.type == "cpu" else len(x)
        space = torch.empty_like(x[:step])
        for first in range(0, len(x), step):
            part, place, result = x[first : first + step], positions[first : first + step], rotated[first : first + step]
            torch.index_select(cos, 0, place, out=result)
            turn_(part, result, torch.index_select(sin, 0, place, out=space[: len(part)]))
        return rotated

    def table(self, places: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin [position, dim] at the first positions, for `turn_`; not under "dynamic" RoPE, where they differ by example."""
        return self.cos_sin(torch.arange(places, device=device), dtype)

    def unrotate(self, x: Tensor, positions: Tensor, total_lengths: Tensor | int | None = None) -> Tensor:
        """The inverse of `rotate`, computed in fp32: to about 1e-6 of |x| in fp32, only to bf16's own rounding in bf16."""
        wide = x.float()
        cos, sin = self.cos_sin(positions.to(x.device), torch.float32, total_lengths)
        return ((wide * cos - half(wide) * sin) / self.scaling**2).to(x.dtype)

    @contextmanager
    def lengths(self, total_lengths: Tensor | None) -> Iterator[None]:
        """Inside the block, forward passes use the frequencies of these lengths [batch] ("dynamic" only, else nothing changes)."""
        if self.kind != "dynamic" or total_lengths is None:
            yield
            return

        def replace(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: tuple[Tensor, Tensor]) -> Any:
            positions = kwargs["position_ids"] if "position_ids" in kwargs else args[1]
            rows = positions.expand(total_lengths.shape[0], -1)
            return self._dynamic(rows, output[0].dtype, total_lengths.to(rows.device)[:, None])

        handle = self.module.register_forward_hook(replace, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
