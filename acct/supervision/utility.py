"""How much one attention head's output changes when one context token is deleted (spec 5, paper B.1).

    o_j = sum_i a_ji v_i;   o_j^{(-i)} - o_j = a_ji / (1 - a_ji) (o_j - v_i)             exact, inputs held fixed
    u_{p,i} = mean over (row j, query head) of ||o_j^{(-i)} - o_j||^2 / (||o_j||^2 + eps_o)

It is a local change of one head with fixed queries, keys and values, not the loss of a run without the token. Only attention rows
exist, never N x N, and never [row, context, dim]: ||o - v||^2 = ||o||^2 - 2 <o, v> + ||v||^2, float64 and clamped at 0. Where one token
takes nearly all attention both that and 1 - a cancel, so the most attended token of each row is removed for real instead.

Flooring 1 - a scales the change of a token with 1 - a < floor by ((1 - a) / floor)^2: a token that takes all but 1e-6 of a row counts
1e-4 of its true change at the floor 1e-4. The numbers here are exact at any floor, 0 included.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from acct.errors import InputError
from acct.models.adapter import ModelAdapter


@torch.no_grad()
def deletion_utility(
    queries: Tensor,
    row_valid: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    context_lengths: Tensor,
    scaling: float,
    context: int | None = None,
    floor: float = 1e-4,
    epsilon: float = 1e-6,
    block: int = 2**24,
    precision: torch.dtype = torch.float64,
) -> Tensor:
    """Deletion utility of every context position for the given units.

    Args:
        queries: rotated [batch, unit, query_head, row, dim], the G query heads of each KV head.
        row_valid: bool [batch, row]; invalid rows count for nothing.
        keys: rotated [batch, unit, history, dim]. values: the same shape. The context comes first in the history.
        visible: bool [batch, row, history], what a row may attend to.
        context_lengths: int64 [batch], N. scaling: factor on attention logits.
        context: width of the result, at most the history; None takes the largest N.
        floor: least value of 1 - a, 0 or more. epsilon: eps_o as a fraction of the mean ||o||^2 over the unit's valid rows and query heads.
        block: most attention weights held at once; units are taken in blocks of that size.
        precision: of the arithmetic.
    Returns:
        float32 [batch, unit, context], at least 0; exactly 0 at padding.
    Raises:
        InputError: an example without a valid row.
    """
    if not bool(row_valid.any(dim=1).all()):
        row = int((~row_valid.any(dim=1)).nonzero()[0])
        raise InputError(f"example {row} has no attention row to measure deletion at. Give it a query of at least one token.")
    context = int(context_lengths.max()) if context is None else context
    batch, units, group, rows, _ = queries.shape
    step = max(block // (batch * group * rows * keys.shape[2]), 1)
    inside = torch.arange(context, device=keys.device) < context_lengths.to(keys.device)[:, None]  # [batch, context]
    parts = []
    for first in range(0, units, step):
        chosen = slice(first, first + step)
        own = (queries[:, chosen], row_valid, keys[:, chosen], values[:, chosen], visible)
        parts.append(_utility(*own, scaling, context, floor, epsilon, precision))
    return torch.cat(parts, dim=1).masked_fill(~inside[:, None], 0.0)


@torch.no_grad()
def rows_utility(
    adapter: ModelAdapter, keys_pre: Tensor, values: Tensor, queries_pre: Tensor, positions: Tensor, valid: Tensor, lengths: Tensor,
    context_lengths: Tensor, context: int, floor: float = 1e-4, epsilon: float = 1e-6, **how: Any,
) -> Tensor:  # fmt: skip
    """Deletion utility of context positions at given rows of a history.

    Args:
        keys_pre, values: [batch, layer, head, history, dim], right-padded, the context first; all layers or some of them.
        queries_pre: [batch, layer, query_head, row, dim]. positions: int64 [batch, row], of the rows in the history.
        valid: bool [batch, row]. lengths: int64 [batch], tokens of each history. context_lengths: int64 [batch], N.
        context: width of the result. floor, epsilon, how: see `deletion_utility`.
    Returns:
        float32 [batch, layer * head, context], 0 at padding.
    """
    history, totals = torch.arange(keys_pre.shape[-2], device=keys_pre.device), lengths[:, None, None]
    keys = adapter.rotate(keys_pre.flatten(1, 2), history, totals)
    queries = adapter.rotate(queries_pre.flatten(1, 2), positions[:, None], totals)
    queries = queries.unflatten(1, (-1, adapter.geometry.queries_per_head))  # [batch, unit, query_head, row, dim]
    visible = history <= positions[..., None]
    places = (context_lengths, adapter.scaling, context, floor, epsilon)
    return deletion_utility(queries, valid, keys, values.flatten(1, 2), visible, *places, **how)


def _utility(
    queries: Tensor,
    row_valid: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    scaling: float,
    context: int,
    floor: float,
    epsilon: float,
    precision: torch.dtype,
) -> Tensor:
    """One block of units, padding not yet removed: float32 [batch, unit, context]."""
    queries, keys, values = (part.to(precision) for part in (queries, keys, values))
    group = queries.shape[2]
    flat = queries.flatten(2, 3)  # [batch, unit, query_head * row, dim]
    # A row that sees nothing would give NaN; an invalid row sees everything and is weighted by zero.
    seen = (visible | ~row_valid[..., None]).repeat(1, group, 1)[:, None]  # [batch, 1, query_head * row, history]
    logits = (flat @ keys.transpose(-1, -2) * scaling).masked_fill_(~seen, -torch.inf)
    weights = logits.softmax(dim=-1)
    output = weights @ values  # o [batch, unit, query_head * row, dim]
    energy = output.square().sum(dim=-1)  # [batch, unit, query_head * row]
    valid = row_valid.repeat(1, group)[:, None].to(energy.dtype)  # [batch, 1, query_head * row]
    count = valid.sum(dim=-1, keepdim=True)
    stabiliser = epsilon * (energy * valid).sum(dim=-1, keepdim=True) / count
    kept = values[:, :, :context]
    distance = output @ kept.transpose(-1, -2)  # <o, v>
    distance = (energy[..., None] - 2 * distance + kept.square().sum(dim=-1)[:, :, None]).clamp_(min=0)
    change = weights[..., :context]
    change = (change / (1 - change).clamp_(min=floor)).square_() * distance
    top, moved = _without_top(logits, values, output, floor)
    inside, place = top < context, top.clamp(max=context - 1)
    change.scatter_(-1, place, torch.where(inside, moved, change.gather(-1, place)))
    share = valid / count / (energy + stabiliser).clamp(min=torch.finfo(precision).tiny)
    return (share[..., None, :] @ change)[..., 0, :].float()


def _without_top(logits: Tensor, values: Tensor, output: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """The most attended position of every row, deleted for real: its place and squared change, both [.., row, 1].

    The change carries the same factor ((1 - a) / max(1 - a, floor))^2 as the identity under the floor has.
    """
    total = logits.logsumexp(dim=-1, keepdim=True)
    top = logits.argmax(dim=-1, keepdim=True)
    others = logits.scatter(-1, top, -torch.inf)
    left = (others.logsumexp(dim=-1, keepdim=True) - total).exp()  # 1 - a without cancellation
    factor = torch.where(left < floor, left / max(floor, torch.finfo(torch.float64).tiny), 1.0)
    rest = others.softmax(dim=-1).nan_to_num(0.0) @ values  # a row that sees one token keeps nothing
    return top, (rest - output).square().sum(dim=-1, keepdim=True) * factor.square()
