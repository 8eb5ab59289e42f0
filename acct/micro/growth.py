"""Grow the large model of a family out of its small one: more layers, KV heads, query heads and width, the same function at the start.

Large models are made like this in practice (function-preserving widening and deepening as in Net2Net, depth up-scaling as in SOLAR), and
small ones by the reverse, pruning. At the start every state of one model is a linear image of the other's; training the grown model on
then makes it a model of its own, and the alignment loss of `recipe` bounds how far the two drift apart.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acct.geometry import head_map, layer_map
from acct.micro.families import build
from acct.models.registry import adapter_for


def rotary_places(small: PreTrainedModel, large: PreTrainedModel) -> Tensor:
    """Where each dimension of a small head goes in a large one: the rotary pair of nearest frequency, in both halves. int64 [small]."""
    narrow, wide = small.model.rotary_emb.inv_freq, large.model.rotary_emb.inv_freq
    pairs = (narrow.log()[:, None] - wide.log()).abs().argmin(1)
    if pairs.unique().numel() < len(pairs):
        raise ValueError("two rotary pairs of the small model have the same nearest frequency in the large one: choose another rope_theta")
    return torch.cat([pairs, pairs + len(wide)])


@torch.no_grad()
def grow(small: PreTrainedModel, family: str, seed: int = 0) -> PreTrainedModel:
    """The family's large model with the small one's function, in float32: exactly so where the rotary frequencies of its heads are there.

    Target layer l copies layer pi_L(l) of the small model. Where several copy one layer, the last does its work and the others
    start with zero outputs: their keys and values are there, and they change nothing until they learn to. KV head h copies head pi_H(h);
    heads beyond the small model's number start with zero outputs in the same way, and so do the new neurons.
    """
    large = build(family, "large", seed)
    a, b = adapter_for(small).geometry, adapter_for(large).geometry
    if (
        b.queries_per_head != a.queries_per_head
        or b.hidden < a.hidden
        or b.head_dim < a.head_dim
        or b.kv_heads < a.kv_heads
        or b.layers < a.layers
    ):
        raise ValueError(f"a model of {a} cannot grow into one of {b}: no width may fall, and query groups must be equal")
    lift = torch.linalg.qr(torch.randn(b.hidden, a.hidden, generator=torch.Generator().manual_seed(seed + 1)))[0].T  # [small, large]
    scale = (a.hidden / b.hidden) ** 0.5  # a lifted state has the same norm over more numbers, so RMSNorm divides by less
    places, heads = rotary_places(small, large), head_map(b.kv_heads, a.kv_heads)
    old, new = small.model, large.model
    new.embed_tokens.weight.copy_(old.embed_tokens.weight @ lift)
    large.lm_head.weight.copy_(small.lm_head.weight * old.norm.weight @ lift)
    for norm in (new.norm, *(getattr(layer, n) for layer in new.layers for n in ("input_layernorm", "post_attention_layernorm"))):
        norm.weight.fill_(scale)
    depth = layer_map(b.layers, a.layers)
    for number, layer in enumerate(new.layers):
        origin, works = old.layers[depth[number]], number + 1 == b.layers or depth[number + 1] != depth[number]
        own, given = layer.self_attn, origin.self_attn
        before, after = origin.input_layernorm.weight, origin.post_attention_layernorm.weight
        for name, per_kv in (("q_proj", b.queries_per_head), ("k_proj", 1), ("v_proj", 1)):
            wide, narrow = getattr(own, name), getattr(given, name)
            rows = _head_rows(narrow.weight * before @ lift, heads, per_kv, a.head_dim, b.head_dim, places)
            if name == "q_proj":
                rows = rows * (b.head_dim / a.head_dim) ** 0.5  # attention divides by the root of the head width
            wide.weight.copy_(rows)
            if narrow.bias is not None:
                wide.bias.copy_(_head_rows(narrow.bias[:, None], heads, per_kv, a.head_dim, b.head_dim, places)[:, 0])
        if hasattr(given, "k_norm"):
            own.q_norm.weight.copy_(given.q_norm.weight)
            own.k_norm.weight.copy_(given.k_norm.weight)
        out = given.o_proj.weight.T.reshape(a.kv_heads, a.queries_per_head, a.head_dim, a.hidden) @ lift
        lifted = torch.zeros(b.kv_heads, b.queries_per_head, b.head_dim, b.hidden)
        lifted[: a.kv_heads, :, places] = out * works
        own.o_proj.weight.copy_(lifted.flatten(0, 2).T)
        neurons = origin.mlp.gate_proj.weight.shape[0]
        layer.mlp.gate_proj.weight[:neurons] = origin.mlp.gate_proj.weight * after @ lift
        layer.mlp.up_proj.weight[:neurons] = origin.mlp.up_proj.weight * after @ lift
        layer.mlp.down_proj.weight.zero_()
        layer.mlp.down_proj.weight[:, :neurons] = lift.T @ origin.mlp.down_proj.weight * works
    return large


@torch.no_grad()
def shuffle_heads(model: PreTrainedModel, seed: int) -> None:
    """Put every layer's KV heads, each with its query heads, in a random order, in place; the function stays.

    Head numbers of two real models have nothing to do with each other, but growth leaves head h of the large model a copy of head pi_H(h)
    of the small one, which is the head that the Bridge reads.
    """
    kv_heads, generator = adapter_for(model).geometry.kv_heads, torch.Generator().manual_seed(seed)
    for layer in model.model.layers:
        order = torch.randperm(kv_heads, generator=generator)
        attention = layer.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            for parameter in getattr(attention, name).parameters():
                parameter.copy_(parameter.unflatten(0, (kv_heads, -1))[order].flatten(0, 1))
        out = attention.o_proj.weight
        out.copy_(out.unflatten(1, (kv_heads, -1))[:, order].flatten(1, 2))


def _head_rows(weight: Tensor, heads: tuple[int, ...], per_kv: int, narrow: int, wide: int, places: Tensor) -> Tensor:
    """Rows of a projection for the wide heads: [kv * per_kv * narrow, x] -> [len(heads) * per_kv * wide, x], zero where nothing goes."""
    grouped = weight.reshape(-1, per_kv, narrow, weight.shape[-1])[list(heads)]
    out = weight.new_zeros(len(heads), per_kv, wide, weight.shape[-1])
    out[:, :, places] = grouped
    return out.flatten(0, 2)
