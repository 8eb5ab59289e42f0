"""Soft rank gates, the differentiable stand-in for top-k (spec 3, paper C.2).

    g_{p,i} = sigma((eta_p - r_{p,i}) / T_R),   sum_i g_{p,i} = b_p,   r = 0 the best;   b = 0: zeros, b = n: ones
    dg_i/db = g_i (1 - g_i) / sum_j g_j (1 - g_j)           no explicit temperature left
    dlog g_i/db = (1 - g_i) / sum_j g_j (1 - g_j)

A biased surrogate: the forward pass of training uses the hard selection, the gradient is that of the gated softmax, which is not
the derivative of top-k. All of it in float64 inside; results come in the dtype of the capacities.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from acct.errors import ConfigError


def solve_offsets(capacities: Tensor, ranks: Tensor, valid: Tensor, temperature: float, iterations: int = 200) -> Tensor:
    """eta [...]: sum over valid i of sigma((eta - r_i) / T_R) equals the capacity, for all rows at once, by bracketed bisection.

    A row's bracket shrinks at every evaluation; the next point is a Newton step on log(S / (n - S)) where that falls inside the
    bracket, the midpoint otherwise. Rows at a boundary (b <= 0, b >= n) get some finite value that the caller does not use.

    Args:
        capacities: b, float64 [...]. ranks: float64 [..., n]. valid: bool [..., n].
    """
    total = valid.sum(dim=-1).to(torch.float64)
    interior = (capacities > 0) & (capacities < total)
    total = torch.where(interior, total, torch.full_like(total, 2.0))
    target = torch.where(interior, capacities, torch.ones_like(total))
    wanted = target.log() - (total - target).log()
    best = ranks.masked_fill(~valid, torch.inf).amin(dim=-1)
    worst = ranks.masked_fill(~valid, -torch.inf).amax(dim=-1)
    low = torch.where(interior, best + temperature * wanted, -torch.ones_like(total))
    high = torch.where(interior, worst + temperature * wanted, torch.ones_like(total))
    offset = torch.where(interior, (target - 0.5).clamp(low, high), torch.zeros_like(total))  # for ranks 0 .. n-1 nearly exact inside
    for _ in range(iterations):
        scaled = (offset[..., None] - ranks) / temperature
        kept = torch.sigmoid(scaled).masked_fill(~valid, 0.0)
        left = torch.sigmoid(-scaled).masked_fill(~valid, 0.0)
        inside, outside = kept.sum(dim=-1), left.sum(dim=-1)
        error = inside.log() - outside.log() - wanted
        done = ~interior | (error.abs() < 1e-14) | (high - low <= 4e-16 * offset.abs())
        if bool(done.all()):
            break
        low, high = torch.where(error < 0, offset, low), torch.where(error < 0, high, offset)
        slope = (kept * left).sum(dim=-1) / temperature * (1 / inside + 1 / outside)
        newton = offset - error / slope
        step = torch.where((newton > low) & (newton < high), newton, low + (high - low) / 2)
        if bool((done | (step == offset)).all()):
            break
        offset = torch.where(done, offset, step)
    return offset


class _SoftRankGates(torch.autograd.Function):
    """(log g, g) with the implicit gradient in the capacities."""

    @staticmethod
    def forward(ctx, capacities: Tensor, ranks: Tensor, valid: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        exact = capacities.detach().to(torch.float64)
        positions = ranks.to(torch.float64)
        total = valid.sum(dim=-1)
        scaled = (solve_offsets(exact, positions, valid, temperature)[..., None] - positions) / temperature
        closed, opened = (exact <= 0)[..., None] | ~valid, (exact >= total)[..., None] & valid
        gates = torch.sigmoid(scaled).masked_fill(opened, 1.0).masked_fill(closed, 0.0)
        log_gates = F.logsigmoid(scaled).masked_fill(opened, 0.0).masked_fill(closed, -torch.inf)
        left = torch.sigmoid(-scaled).masked_fill(opened | closed, 0.0)
        ctx.save_for_backward(gates, left)
        ctx.dtype = capacities.dtype
        return log_gates.to(capacities.dtype), gates.to(capacities.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_log: Tensor, grad: Tensor) -> tuple[Tensor, None, None, None]:
        gates, left = ctx.saved_tensors
        slope = gates * left
        moved = torch.where(left > 0, grad * slope + grad_log * left, torch.zeros_like(left)).sum(dim=-1)
        total = slope.sum(dim=-1)
        movable = total > 0
        return torch.where(movable, moved / torch.where(movable, total, torch.ones_like(total)), 0.0).to(ctx.dtype), None, None, None


def soft_rank_gates(capacities: Tensor, ranks: Tensor, temperature: float = 2.0, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Gates that open to the best-ranked positions and sum to the capacity.

    Args:
        capacities: b [..., unit], tokens. ranks: integer [..., unit, n], a frozen ranking, 0 the best.
        temperature: T_R > 0, in ranks: how far a gate is spread around its unit's cutoff.
        valid: bool, broadcastable to [..., unit, n]; False where a position is padding or tail. Its gates are 0. None: all valid.
    Returns:
        log_gates, gates: [..., unit, n] in the dtype of `capacities`; log_gates is -inf where a gate is 0. Gradient flows to
        `capacities` only, and is zero in units at a boundary.
    Raises:
        ConfigError: the temperature is not positive.
    """
    if not temperature > 0:
        raise ConfigError(f"gate temperature must be above 0, got {temperature}. The paper's value is 2.")
    shape = torch.broadcast_shapes(ranks.shape, (*capacities.shape, 1))
    if not shape[-1]:  # an empty prefix: nothing to gate
        return capacities[..., None].expand(shape), capacities[..., None].expand(shape)
    valid = torch.ones(1, dtype=torch.bool, device=ranks.device) if valid is None else valid
    return _SoftRankGates.apply(capacities.expand(shape[:-1]), ranks.expand(shape), valid.expand(shape), temperature)
