"""The Cartographer's scores in one kernel (spec 2).

    s_{p,i} = w_o^T GELU(base_i + W_m <z_{p,a}, x_i>),   GELU(h) = h (1 + erf(h / sqrt 2)) / 2

A program holds x and base of some positions in registers and walks over some units: the matches, the mixed features and their GELU never
leave it, and what is written is one number for a unit and position. Sums are float32 whatever the type of the inputs. The backward pass
computes the plain path again, block by block, so that training too never holds [unit, context, d_M].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

HELD = 4096
"""Numbers of x, and of base, that one program holds: 16 registers of a thread each, at eight warps."""
WARPS = 8
"""Of one program."""
UNITS = 16
"""Units that one program walks over: x and base are read once for so many."""
BACKWARD_NUMBERS = 1 << 26
"""Most numbers [unit, context, d_M] of one block of the backward pass, unless one unit has more."""

Plain = Callable[[Tensor, Tensor, Tensor], Tensor]


@triton.jit
def _score(
    token, base, slots, match, readout, scores, context, units,
    WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, QUERY_SLOTS: tl.constexpr, PLACES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(2).to(tl.int64)
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    inner = tl.arange(0, WIDTH_PAD)
    here, known = place < context, inner < WIDTH
    where = (row * context + place)[:, None] * WIDTH + inner[None, :]
    inside = here[:, None] & known[None, :]
    x = tl.load(token + where, mask=inside, other=0.0).to(tl.float32)
    shared = tl.load(base + where, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(readout + inner, mask=known, other=0.0).to(tl.float32)
    first = tl.program_id(1) * GROUP
    for unit in range(first, tl.minimum(first + GROUP, units)):
        mixed = shared
        for a in tl.static_range(QUERY_SLOTS):
            z = tl.load(slots + ((row * units + unit) * QUERY_SLOTS + a) * WIDTH + inner, mask=known, other=0.0).to(tl.float32)
            mix = tl.load(match + inner * QUERY_SLOTS + a, mask=known, other=0.0).to(tl.float32)
            mixed += tl.sum(x * z[None, :], axis=1)[:, None] * mix[None, :]
        active = 0.5 * mixed * (1.0 + tl.erf(mixed * 0.7071067811865476))
        found = tl.sum(active * weight[None, :], axis=1)
        tl.store(scores + (row * units + unit) * context + place, found.to(scores.dtype.element_ty), mask=here)


def run_kernel(token: Tensor, base: Tensor, slots: Tensor, match: Tensor, readout: Tensor) -> Tensor:
    """The scores, without a graph; arguments as `scores`, in any of `acct.kernels.TYPES`."""
    (batch, context, width), (units, query_slots) = token.shape, slots.shape[1:3]
    result = token.new_empty(batch, units, context)
    padded = max(triton.next_power_of_2(width), 2)
    places = max(min(HELD // padded, triton.next_power_of_2(context)), 1)
    grid = (triton.cdiv(context, places), triton.cdiv(units, UNITS), batch)
    if result.numel():
        with torch.cuda.device_of(token):  # a launch goes to the current device; nothing changes for the CPU
            _score[grid](
                *(part.contiguous() for part in (token, base, slots, match, readout)), result, context, units,
                WIDTH=width, WIDTH_PAD=padded, QUERY_SLOTS=query_slots, PLACES=places, GROUP=UNITS, num_warps=WARPS,
            )  # fmt: skip
    return result


class _Scores(torch.autograd.Function):
    """Forward: the kernel. Backward: gradients of the plain path, one example and some units at a time."""

    @staticmethod
    def forward(ctx: Any, plain: Plain, token: Tensor, base: Tensor, slots: Tensor, match: Tensor, readout: Tensor) -> Tensor:
        ctx.plain = plain
        ctx.save_for_backward(token, base, slots, match, readout)
        return run_kernel(token, base, slots, match, readout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        token, base, slots, *weights = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        sums = [torch.zeros_like(part) if wanted else None for part, wanted in zip((token, base, slots, *weights), needed)]
        step = max(BACKWARD_NUMBERS // max(token[0].numel(), 1), 1)
        for row in range(len(token)):
            for first in range(0, slots.shape[1], step):
                parts = [token[row : row + 1], base[row : row + 1], slots[row : row + 1, first : first + step]]
                parts = [part.detach().requires_grad_(wanted) for part, wanted in zip(parts, needed)]
                with torch.enable_grad():
                    found = ctx.plain(*parts)
                wanted_parts = [part for part, wanted in zip((*parts, *weights), needed) if wanted]
                gradients = iter(torch.autograd.grad(found, wanted_parts, upstream[row : row + 1, first : first + step]))
                places = (row, row, (row, slice(first, first + step)), ..., ...)
                for total, place in zip(sums, places):
                    if total is not None:
                        total[place] += next(gradients).view_as(total[place])
        return None, *sums


def scores(plain: Plain, token: Tensor, base: Tensor, slots: Tensor, match: Tensor, readout: Tensor) -> Tensor:
    """w_o^T GELU(base_i + W_m <z_{p,a}, x_i>) for every unit and position.

    Args:
        plain: token, base, slots -> the same scores by PyTorch's operations, with `match` and `readout` themselves as its weights; it is
            differentiated in the backward pass.
        token: x [batch, context, d_M]. base: [batch, context, d_M]. slots: z / sqrt(d_M) [batch, unit, query_slot, d_M].
        match: W_m [d_M, query_slot]. readout: w_o [1, d_M].
    Returns:
        [batch, unit, context] in the type of `token`. Gradients are those of the plain path, of first order only.
    """
    return _Scores.apply(plain, token, base, slots, match, readout)
