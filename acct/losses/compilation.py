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
    """Weights of the five terms; 0 leaves a term out."""

    key_direction: float = 1.0
    key_scale: float = 1e-4
    value: float = 1.0
    attention: float = 1.0
    behaviour: float = 1.0

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
        compiled, native: pre-RoPE keys [slot, dim]. epsilon: floor of a norm. weights: `slot_weights(selection)`, when at hand.
    """
    native = native.detach().to(compiled.dtype)
    weights = slot_weights(selection, compiled.dtype) if weights is None else weights
    # sqrt(max(||v||^2, eps^2)) = max(||v||, eps), with a zero gradient instead of NaN at v = 0
    norms = (compiled.square().sum(-1).clamp(min=epsilon**2) * native.square().sum(-1).clamp(min=epsilon**2)).sqrt()
    return (weights * (1 - (compiled * native).sum(-1) / norms)).sum()


def key_scale(compiled: Tensor, native: Tensor, selection: Selection, epsilon: float = 1e-6, weights: Tensor | None = None) -> Tensor:
    """L_Kscale of pre-RoPE keys [slot, dim]; other arguments as in `key_direction`."""
    native = native.detach().to(compiled.dtype)
    weights = slot_weights(selection, compiled.dtype) if weights is None else weights
    ratio = (compiled.square().mean(-1) + epsilon) / (native.square().mean(-1) + epsilon)  # (r(K^) / r(K*))^2
    return (weights * (0.5 * ratio.log()).square()).sum()


def value(compiled: Tensor, native: Tensor, selection: Selection, epsilon: float = 1e-6, weights: Tensor | None = None) -> Tensor:
    """L_V of values [slot, dim]; other arguments as in `key_direction`."""
    native = native.detach().to(compiled.dtype)
    weights = slot_weights(selection, compiled.dtype) if weights is None else weights
    return (weights * ((compiled - native).square().mean(-1) / (native.square().mean(-1) + epsilon))).sum()


def geometry(kv: SparseKV, native: NativeStates, epsilon: float = 1e-6) -> dict[str, Tensor]:
    """The three geometry terms of compiled states, keys not yet rotated, by the names of `CompilationWeights`."""
    assert not kv.rotated, "geometry terms compare keys before RoPE"
    keys, values = gather_native(kv.selection, native)
    weights = slot_weights(kv.selection, kv.keys.dtype)
    return {
        "key_direction": key_direction(kv.keys, keys, kv.selection, epsilon, weights),
        "key_scale": key_scale(kv.keys, keys, kv.selection, epsilon, weights),
        "value": value(kv.values, values, kv.selection, epsilon, weights),
    }


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
    """

    queries: Tensor
    row_valid: Tensor
    history: Tensor
    keys: Tensor
    scaling: float


@torch.no_grad()
def attention_teacher(rotate: Rotate, native: NativeStates, selection: Selection, scaling: float, positions: int = 32) -> AttentionTeacher:
    """Prepare L_attn from the native run with its query vectors.

    Args:
        rotate: the target adapter's. native: with `queries_pre`. scaling: the target's attention scale. positions: most query positions.
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
    folded = _wide(queries).unflatten(2, (heads, -1)).flatten(3, 4)  # [batch, layer, head, group * row, dim]
    logits = scaling * folded @ _wide(query_keys).unflatten(1, (layers, heads)).mT  # [batch, layer, head, group * row, query]
    hidden = along > index[..., None]  # [batch, row, query]
    logits = logits.unflatten(3, (-1, index.shape[1])).masked_fill(hidden[:, None, None, None], float("-inf"))
    history = logits.logsumexp(-1).flatten(2, 3)
    keys, _ = gather_native(selection, native)
    keys = rotate(keys, selection.positions, totals[batch_index(selection)])
    return AttentionTeacher(queries, valid, history.view(batch, layers, -1, index.shape[1]), keys, scaling)


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


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


class _AttentionDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compiled: Tensor, teacher: AttentionTeacher, selection: Selection, weights: Tensor) -> Tensor:
        total = compiled.new_zeros(())
        gradient = torch.zeros_like(compiled) if ctx.needs_input_grad[0] else None
        native = teacher.keys.to(compiled.dtype)
        queries, history = teacher.queries.to(compiled.dtype), teacher.history.to(compiled.dtype)
        for layer in range(selection.layers):
            index, valid = padded_index(selection, layer)  # [batch, head, S]
            if not index.shape[-1]:
                continue
            here = layer_slice(selection, layer)
            folded = queries[:, layer].unflatten(1, (selection.heads, -1)).flatten(2, 3)  # [batch, head, group * row, dim]
            group = folded.shape[2] // weights.shape[1]
            row_weights = weights.repeat(1, group)[:, None]  # [batch, 1, group * row]
            past = history[:, layer].reshape(folded.shape[:3])[..., None]
            teacher_logits, teacher_sum, teacher_share = _shares(folded, native[here][index], valid, past, teacher.scaling)
            logits, log_sum, share = _shares(folded, compiled[here][index], valid, past, teacher.scaling)
            difference = teacher_logits.sub_(logits).mul_(teacher_share).sum(-1)
            total += (row_weights * (log_sum - teacher_sum + difference)).sum()
            if gradient is not None:
                pull = share.sub_(teacher_share).mul_(teacher.scaling * row_weights[..., None])  # d KL / d logit
                gradient[here] = (pull.mT @ folded)[valid]  # row-major order of [batch, head, S] is the packed order
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (None if gradient is None else grad_output * gradient), None, None, None


def _shares(queries: Tensor, keys: Tensor, valid: Tensor, past: Tensor, scaling: float) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [batch, head, row, S] (one finite, hopeless number at padding), log normalisers [batch, head, row], attention shares."""
    logits = (queries @ keys.mT).mul_(scaling).masked_fill_(~valid[:, :, None], -1e30)
    top = torch.maximum(logits.amax(-1, keepdim=True), past)
    shares = (logits - top).exp_()
    mass = shares.sum(-1, keepdim=True) + (past - top).exp()
    return logits, (top + mass.log()).squeeze(-1), shares.div_(mass)


def behaviour(student_logits: Tensor, teacher_logits: Tensor, query_lengths: Tensor, positions: int = 8) -> Tensor:
    """L_beh at up to the last `positions` query positions.

    Args:
        student_logits: of the query recomputed on the mounted compiled states [batch, query, vocabulary].
        teacher_logits: the same on the native states at the same selection; detached here. query_lengths: int64 [batch].
    """
    index, valid = last_rows(query_lengths, positions)
    example = torch.arange(len(index), device=index.device)[:, None]
    student = F.log_softmax(_wide(student_logits[example, index]), dim=-1)
    teacher = F.log_softmax(_wide(teacher_logits.detach()[example, index]), dim=-1)
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)  # [batch, row]
    return (divergence * valid / valid.sum(1, keepdim=True)).sum() / len(index)
