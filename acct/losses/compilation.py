"""The five terms of the Compilation loss (spec 5, paper B.3); selections are frozen and no answer is used.

    L_Kdir   = 1 - <K^, K*> / (nu(K^) nu(K*))                 nu(v) = max(||v||, eps)
    L_Kscale = (log r(K^) - log r(K*))^2                      r(v) = sqrt(||v||^2 / d_T + eps)
    L_V      = ||V^ - V*||^2 / (d_T r(V*)^2)
    L_attn   = KL(native || compiled) of softmax over [selected context keys; visible native query keys] under fixed queries q*
    L_beh    = KL(native-selected || compiled) of the full-vocabulary distributions, temperature 1, teacher detached

Geometry terms average the slots inside an example, L_attn its (layer, query head, query position), L_beh its query positions;
then examples are averaged. An example without a slot has no geometry term and is left out of those averages. K*, V* are the
native target's pre-RoPE keys and values at the slots. All in the dtype of the compiled side (float32).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from acct.selection import batch_index, gather_native, layer_slice, padded_index
from acct.types import NativeStates, Selection, SparseKV

Rotate = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`ModelAdapter.rotate`: x before RoPE [..., seq, dim] or [slot, dim], positions, total lengths -> x rotated."""


@dataclass(frozen=True)
class CompilationWeights:
    """Weights of the five terms, and of the one beyond the paper (`acct.losses.attention_output`); 0 leaves a term out."""

    key_direction: float = 1.0
    key_scale: float = 1e-4
    value: float = 1.0
    attention: float = 1.0
    behaviour: float = 1.0
    attention_output: float = 0.0

    def total(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Weighted sum of the terms given by name; a term with weight 0 may be missing."""
        parts = [weight * terms[name] for name, weight in asdict(self).items() if weight]
        return torch.stack(parts).sum() if parts else torch.zeros(())


def slot_weights(selection: Selection, dtype: torch.dtype = torch.float32) -> Tensor:
    """[slot], 1 / (slots of the example x examples that have slots): sums to 1, so that a weighted sum is the mean over examples."""
    slots = selection.counts.sum(1)  # [batch]
    share = slots.clamp(min=1).to(dtype).reciprocal() / (slots > 0).sum().clamp(min=1)
    return share[batch_index(selection)]


def key_direction(compiled: Tensor, native: Tensor, selection: Selection, epsilon: float = 1e-6, weights: Tensor | None = None) -> Tensor:
    """L_Kdir, in [0, 2].

    Args:
        compiled, native: pre-RoPE keys [slot, dim]; native ones are detached. epsilon: floor of a norm.
        weights: `slot_weights(selection)`, when at hand.
    """
    weights = slot_weights(selection, compiled.dtype) if weights is None else weights
    return (weights * _direction(*_squares(compiled, native), _product(compiled, native), epsilon)).sum()


def key_scale(compiled: Tensor, native: Tensor, selection: Selection, epsilon: float = 1e-6, weights: Tensor | None = None) -> Tensor:
    """L_Kscale of pre-RoPE keys [slot, dim]; epsilon is added to the mean square."""
    weights = slot_weights(selection, compiled.dtype) if weights is None else weights
    return (weights * _scale(*_squares(compiled, native), compiled.shape[-1], epsilon)).sum()


def value(compiled: Tensor, native: Tensor, selection: Selection, epsilon: float = 1e-6, weights: Tensor | None = None) -> Tensor:
    """L_V of values [slot, dim]; epsilon is added to the native mean square."""
    native = native.detach().to(compiled.dtype)
    weights = slot_weights(selection, compiled.dtype) if weights is None else weights
    return (weights / (native.square().mean(-1) + epsilon) * (compiled - native).square().mean(-1)).sum()


def geometry(kv: SparseKV, native: NativeStates, epsilon: float = 1e-6) -> dict[str, Tensor]:
    """The three geometry terms of compiled states, keys not yet rotated, by the names of `CompilationWeights`.

    Equal to the single functions; sums over the keys are taken once for direction and scale.
    """
    assert not kv.rotated, "geometry terms compare keys before RoPE"
    keys, values = gather_native(kv.selection, native)
    weights = slot_weights(kv.selection, kv.keys.dtype)
    own, other = _squares(kv.keys, keys)
    return {
        "key_direction": (weights * _direction(own, other, _product(kv.keys, keys), epsilon)).sum(),
        "key_scale": (weights * _scale(own, other, keys.shape[-1], epsilon)).sum(),
        "value": value(kv.values, values, kv.selection, epsilon, weights),
    }


def _squares(compiled: Tensor, native: Tensor) -> tuple[Tensor, Tensor]:
    return compiled.square().sum(-1), native.detach().to(compiled.dtype).square().sum(-1)


def _product(compiled: Tensor, native: Tensor) -> Tensor:
    return (compiled * native.detach().to(compiled.dtype)).sum(-1)


def _direction(own: Tensor, other: Tensor, product: Tensor, epsilon: float) -> Tensor:
    # sqrt(max(||v||^2, eps^2)) = max(||v||, eps), with a zero gradient instead of NaN at v = 0
    return 1 - product * (own.clamp(min=epsilon**2) * other.clamp(min=epsilon**2)).rsqrt()


def _scale(own: Tensor, other: Tensor, dim: int, epsilon: float) -> Tensor:
    return (0.5 * ((own / dim + epsilon) / (other / dim + epsilon)).log()).square()


def last_rows(lengths: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The last `most` positions of every example, or all when it has fewer.

    Returns:
        index: int64 [batch, row], ascending; 0 where not valid. valid: bool [batch, row].
    """
    width = min(most, int(lengths.max()))
    index = (lengths - lengths.clamp(max=width))[:, None] + torch.arange(width, device=lengths.device)
    valid = index < lengths[:, None]
    return index.masked_fill(~valid, 0), valid


@dataclass(frozen=True)
class AttentionTeacher:
    """What L_attn keeps of the native run: fixed for a batch and a selection.

    Attributes:
        queries: q* rotated, [batch, layer, query_head, row, dim], at the last query positions; row_valid: bool [batch, row].
        history: [batch, layer, query_head, row], log of the sum of exp(logit) over the query keys that the row sees. It is all that
            the compiled and the native distribution share, so the query keys themselves are not needed again.
        keys: native selected keys rotated, [slot, dim]. scaling: of the logits.
        history_values: [batch, layer, query_head, row, dim], what the row reads of the query's own values, its shares of them summing to
            one; None unless asked for (`acct.losses.attention_output`).
    """

    queries: Tensor
    row_valid: Tensor
    history: Tensor
    keys: Tensor
    scaling: float
    history_values: Tensor | None = None


@torch.no_grad()
def attention_teacher(
    rotate: Rotate, native: NativeStates, selection: Selection, scaling: float, positions: int = 32, values: bool = False
) -> AttentionTeacher:
    """Prepare L_attn from the native run with its query vectors.

    Args:
        rotate: the target adapter's. native: with `queries_pre`. scaling: the target's attention scale. positions: most query positions.
        values: also what the rows read of the query's own values.
    """
    assert native.queries_pre is not None, "read the native states with queries=True"
    layers, heads = selection.layers, selection.heads
    batch, query = native.query_keys_pre.shape[0], native.query_keys_pre.shape[2]
    index, valid = last_rows(native.query_lengths, positions)  # [batch, row]
    totals = native.context_lengths + native.query_lengths
    start = native.context_lengths[:, None]
    where = index[:, None, None, :, None].expand(-1, *native.queries_pre.shape[1:3], -1, native.queries_pre.shape[-1])
    queries = rotate(native.queries_pre.gather(3, where), (start + index)[:, None, None], totals[:, None, None, None])
    along = torch.arange(query, device=index.device)
    query_keys = rotate(native.query_keys_pre, (start + along)[:, None], totals[:, None, None])  # [batch, unit, query, dim]
    folded = fold(wide(queries), heads)  # [batch, layer, head, group * row, dim]
    logits = scaling * folded @ wide(query_keys).unflatten(1, (layers, heads)).mT  # [batch, layer, head, group * row, query]
    hidden = along > index[..., None]  # [batch, row, query]
    logits = logits.unflatten(3, (-1, index.shape[1])).masked_fill(hidden[:, None, None, None], float("-inf"))
    history = logits.logsumexp(-1).flatten(2, 3)
    read = None
    if values:
        own = wide(native.query_values).unflatten(1, (layers, heads))[:, :, :, None]  # [batch, layer, head, 1, query, dim]
        read = (logits.softmax(-1) @ own).flatten(2, 3).view_as(queries).to(queries.dtype)
    keys, _ = gather_native(selection, native)
    keys = rotate(keys, selection.positions, totals[batch_index(selection)])
    return AttentionTeacher(queries, valid, history.view(batch, layers, -1, index.shape[1]), keys, scaling, read)


def attention(compiled: Tensor, teacher: AttentionTeacher, selection: Selection) -> Tensor:
    """L_attn: divergence of the joint softmax over selected context keys and visible query keys, native from compiled.

    Query logits are common to both sides, so KL = lse^ - lse* + sum over context slots of a*_i (logit*_i - logit^_i), where both
    normalisers include the history. One padded product per layer, query heads folded onto their KV head; the gradient with
    respect to the keys is taken in the same pass, so nothing of the size of the attention is kept for backward.

    Args:
        compiled: rotated keys [slot, dim]. teacher: of the same selection.
    """
    valid = teacher.row_valid.to(compiled.dtype)  # [batch, row]
    layers, query_heads = teacher.queries.shape[1:3]
    weights = valid / (valid.sum(1, keepdim=True) * layers * query_heads * len(valid))
    result: Tensor = _AttentionDivergence.apply(compiled, teacher, selection, weights)
    return result


def wide(x: Tensor) -> Tensor:
    """At least float32."""
    return x if x.dtype == torch.float64 else x.float()


_LEAST = -60.0
"""Log shares below it are raised to it before exp, which costs 1e-26 and avoids the slow path of vectorised exp at -1e30."""


class _AttentionDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compiled: Tensor, teacher: AttentionTeacher, selection: Selection, weights: Tensor) -> Tensor:
        total = compiled.new_zeros(())
        gradient = torch.zeros_like(compiled) if ctx.needs_input_grad[0] else None
        native = teacher.keys.to(compiled.dtype)
        queries = share_queries(teacher, selection.heads, compiled.dtype)
        vectors = queries[..., :-2]
        row_weights = weights.repeat(1, vectors.shape[3] // weights.shape[1])[:, None, :, None]  # [batch, 1, group * row, 1]
        for layer in range(selection.layers):
            index, valid = padded_index(selection, layer)  # [batch, head, S]
            if not index.shape[-1]:
                continue
            here = layer_slice(selection, layer)
            log_native, log_compiled = (log_shares(queries[:, layer], keys[here], index, valid) for keys in (native, compiled))
            difference = log_native - log_compiled
            native_share = log_native.clamp_(min=_LEAST).exp_()
            total += (row_weights * difference.mul_(native_share).sum(-1, keepdim=True)).sum()
            if gradient is not None:
                pull = log_compiled.clamp_(min=_LEAST).exp_().sub_(native_share)  # d KL / d logit, [batch, head, group * row, S + 1]
                slots = (pull.mT @ (row_weights * vectors[:, layer]))[:, :, :-1]  # [batch, head, S, dim]
                gradient[here] = slots[valid]  # row-major order of [batch, head, S] is the packed order
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (None if gradient is None else grad_output * gradient), None, None, None


def fold(x: Tensor, heads: int) -> Tensor:
    """[batch, layer, query_head, row, dim] -> [batch, layer, head, group * row, dim]: query heads beside their KV head."""
    return x.unflatten(2, (heads, -1)).flatten(3, 4)


def share_queries(teacher: AttentionTeacher, heads: int, kind: torch.dtype) -> Tensor:
    """q* scaled, with two more numbers for each row: [batch, layer, head, group * row, dim + 2], for `log_shares`.

    1 meets a slot's mask, the history meets one slot that stands for all visible query keys.
    """
    history = fold(teacher.history.to(kind)[..., None], heads)
    return torch.cat([teacher.scaling * fold(teacher.queries.to(kind), heads), torch.ones_like(history), history], dim=-1)


def log_shares(queries: Tensor, keys: Tensor, index: Tensor, valid: Tensor) -> Tensor:
    """Log of the joint softmax [batch, head, group * row, S + 1], the query history last; about -1e30 at padding.

    Args:
        queries: one layer of `share_queries`. keys: [slot, dim] of that layer. index, valid: `padded_index`.
    """
    batch, heads, width = index.shape
    dim = keys.shape[-1]
    padded = keys.new_zeros(batch, heads, width + 1, dim + 2)
    padded[..., :width, :dim] = keys.index_select(0, index.reshape(-1)).view(batch, heads, width, dim)
    padded[..., :width, dim].masked_fill_(~valid, -1e30)  # finite, so that padding cancels between both sides instead of giving NaN
    padded[..., width, dim + 1] = 1
    return (queries @ padded.mT).log_softmax(-1)


def behaviour(student_logits: Tensor, teacher_logits: Tensor, query_lengths: Tensor, positions: int = 8) -> Tensor:
    """L_beh at up to the last `positions` query positions.

    Args:
        student_logits: of the query recomputed on the mounted compiled states [batch, query, vocabulary].
        teacher_logits: the same on the native states at the same selection; detached here. query_lengths: int64 [batch].
    """
    index, valid = last_rows(query_lengths, positions)
    example = torch.arange(len(index), device=index.device)[:, None]
    student = F.log_softmax(wide(student_logits[example, index]), dim=-1)
    teacher = F.log_softmax(wide(teacher_logits.detach()[example, index]), dim=-1)
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)  # [batch, row]
    return (divergence * valid / valid.sum(1, keepdim=True)).sum() / len(index)
