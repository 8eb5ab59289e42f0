"""Joint attention over a mounted context and the native history: one softmax, one mask for every unit (spec 4, Mount; spec 3).

For one query of KV head h, with S context slots and n native tokens (query and generated) in the same normalisation:

    a = softmax([q K_context^T ; q K_native^T] * scaling + mask),    out = a [V_context ; V_native]

The context part of the mask depends on the unit (which slots exist), the native part on causality and padding. Under gates
(Allocation) the value is the hard selection's and the gradient is the soft path's, whose context logits carry + log g:

    out = hard + (soft - stop(soft))        a biased surrogate for discrete selection, not the derivative of top-k

Query heads are grouped over their KV head through views; keys and values are never repeated. Precision: that of the tensors; the
gated softmax is taken in float32 or higher. `acct_attention` is what transformers calls; `register_attention` makes it known.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from acct.errors import ModelError

IMPLEMENTATION = "acct_mount"
TAG = "_acct_mounted_layer"  # attribute of a key tensor that leads from transformers' call back to the mounted layer


def native_mask(valid: Tensor, queries: int) -> Tensor:
    """Which native tokens each of the last `queries` native tokens sees: bool [batch, queries, native].

    A token sees every valid token at or before its own place, and always itself: a padded query has one finite logit, so no NaN.

    Args:
        valid: bool [batch, native], False at padding, the new tokens included.
    """
    native = valid.shape[1]
    key = torch.arange(native, device=valid.device)
    query = torch.arange(native - queries, native, device=valid.device)[:, None]
    return ((key < query) & valid[:, None]) | (key == query)


def joint_mask(context_valid: Tensor, native_allowed: Tensor) -> Tensor:
    """[batch, head, S] and [batch, query, native] side by side: bool [batch, head, query, S + native]."""
    batch, heads, slots = context_valid.shape
    _, queries, native = native_allowed.shape
    context = context_valid[:, :, None].expand(batch, heads, queries, slots)
    return torch.cat([context, native_allowed[:, None].expand(batch, heads, queries, native)], dim=-1)


def causal_attention(query: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
    """Plain causal attention where queries and keys are the same tokens: [batch, query_head, query, dim] (padding on the right)."""
    grouped = query.shape[1] != keys.shape[1]
    causal = query.shape[2] > 1
    return functional.scaled_dot_product_attention(query, keys, values, is_causal=causal, scale=scaling, enable_gqa=grouped)


def joint_attention(query: Tensor, keys: Tensor, values: Tensor, allowed: Tensor, scaling: float | None) -> Tensor:
    """One softmax over context and native keys (spec 4).

    Args:
        query: [batch, query_head, query, dim]. keys, values: [batch, head, S + native, dim]; finite also where masked.
        allowed: bool [batch, head, query, S + native], at least one True in every row. scaling: None for 1 / sqrt(dim).
    Returns:
        [batch, query_head, query, dim]; its gradient into masked keys and values is exactly zero.
    """
    batch, query_heads, queries, dim = query.shape
    heads, total = keys.shape[1:3]
    group = query_heads // heads
    if queries == 1:  # the G query heads of a unit as G rows of one product: the key is read once
        rows = query.reshape(batch, heads, group, dim)
        out = functional.scaled_dot_product_attention(rows, keys, values, allowed.expand(batch, heads, group, total), scale=scaling)
    else:  # a unit becomes a batch entry, its G query heads share the key by a stride of zero
        shared = (batch * heads, group, total, dim)
        out = functional.scaled_dot_product_attention(
            query.reshape(batch * heads, group, queries, dim),
            keys.reshape(batch * heads, 1, total, dim).expand(shared),
            values.reshape(batch * heads, 1, total, dim).expand(shared),
            allowed.reshape(batch * heads, 1, queries, total),
            scale=scaling,
        )
    return out.reshape(batch, query_heads, queries, dim)


def gated_attention(
    query: Tensor, keys: Tensor, values: Tensor, hard: Tensor, log_gates: Tensor, native_allowed: Tensor, scaling: float | None
) -> Tensor:
    """Hard selection forward, soft gates backward (spec 3, C.2): a biased surrogate.

    Args:
        query: [batch, query_head, query, dim]. keys, values: [batch, head, context + native, dim].
        hard: bool [batch, head, context], the selection of the forward pass.
        log_gates: [batch, head, context], log g, -inf where a position is padding or g = 0.
        native_allowed: bool [batch, query, native]. scaling: None for 1 / sqrt(dim).
    Returns:
        [batch, query_head, query, dim]: the hard output in value, the soft output's gradient in query, keys, values and gates.
    """
    allowed = joint_mask(hard, native_allowed)
    inputs = (query, keys, values, log_gates)
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)):
        return joint_attention(query, keys, values, allowed, scaling)
    with torch.no_grad():
        chosen = joint_attention(query, keys, values, allowed, scaling)
    batch, query_heads, queries, dim = query.shape
    heads, total = keys.shape[1:3]
    group = query_heads // heads
    scaling = dim**-0.5 if scaling is None else scaling
    precise = torch.promote_types(query.dtype, torch.float32)
    rows = (query * scaling).reshape(batch, heads, group * queries, dim)
    logits = torch.matmul(rows, keys.transpose(-1, -2)).to(precise).view(batch, heads, group, queries, total)
    native = torch.zeros(native_allowed.shape, dtype=precise, device=query.device).masked_fill(~native_allowed, float("-inf"))
    bias = torch.cat(
        [
            log_gates.to(precise)[:, :, None].expand(-1, -1, queries, -1),
            native[:, None].expand(-1, heads, -1, -1),
        ],
        dim=-1,
    )  # [batch, head, query, context + native]
    weights = (logits + bias[:, :, None]).softmax(dim=-1).to(values.dtype)
    soft = torch.matmul(weights.view(batch, heads, group * queries, total), values).view(batch, query_heads, queries, dim)
    return chosen + (soft - soft.detach())


def acct_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls while a context is mounted; returns [batch, query, query_head, dim].

    Keys that come from a mounted cache lead back to their layer, which attends to its own context. Keys without one (a plain forward
    of the same model inside the `with` block) get plain causal attention, or the given bool or additive 4D mask.
    """
    if dropout:
        raise ModelError(f"attention dropout is {dropout} in a mounted target; expected 0. Put the frozen model in eval mode.")
    layer = getattr(key, TAG, None)
    if layer is not None:
        out = layer.attend(query, key, value, scaling)
    elif attention_mask is None and query.shape[2] == key.shape[2]:
        out = causal_attention(query, key, value, scaling)
    else:
        valid = torch.ones(key.shape[0], key.shape[2], dtype=torch.bool, device=key.device)
        mask = native_mask(valid, query.shape[2])[:, None] if attention_mask is None else attention_mask[..., : key.shape[2]]
        grouped = query.shape[1] != key.shape[1]
        out = functional.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=grouped)
    return out.transpose(1, 2).contiguous(), None


def register_attention() -> None:
    """Make `acct_attention` known to transformers under IMPLEMENTATION. No mask function belongs to it, so transformers builds no mask."""
    if IMPLEMENTATION not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        AttentionInterface.register(IMPLEMENTATION, acct_attention)
