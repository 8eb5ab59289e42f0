"""Slow float64 twin of joint attention, and an oracle for whole models that shares no code with `acct.cache`.

`attention` loops over examples, query heads and queries and holds each unit's slots as a list: no mask, no padding, no packing.
`masked_native_logits` runs the stock model over [context; query] and closes context positions to the query by masks for every layer and
head, set by hooks: what a mounted selection of the model's own states must give.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acct.models import compat
from acct.models.adapter import Capture, ModelAdapter
from acct.selection import gather_native, select
from acct.types import NativeStates, Selection, SparseKV, TokenBatch

Slots = Sequence[Sequence[tuple[Tensor, Tensor]]]  # [batch][head] -> keys and values [slot, dim]


def attention(
    query: Tensor,
    context: Slots,
    native_keys: Tensor,
    native_values: Tensor,
    native_valid: Tensor,
    scaling: float,
    log_gates: Sequence[Sequence[Tensor]] | None = None,
) -> Tensor:
    """One query at a time over its unit's slots and the native tokens it may see; float64 [batch, query_head, query, dim]."""
    batch, query_heads, queries, _ = query.shape
    heads, native = native_keys.shape[1:3]
    rows = []
    for b in range(batch):
        for q_head in range(query_heads):
            head = q_head // (query_heads // heads)
            keys, values = (t.double() for t in context[b][head])
            for i in range(queries):
                own = native - queries + i
                seen = [j for j in range(own) if bool(native_valid[b, j])] + [own]
                vector = query[b, q_head, i].double()
                bias = torch.zeros(len(keys), dtype=torch.float64) if log_gates is None else log_gates[b][head].double()
                logits = [vector @ keys[s] * scaling + bias[s] for s in range(len(keys))]
                logits += [vector @ native_keys[b, head, j].double() * scaling for j in seen]
                weights = torch.stack(logits).exp() / torch.stack(logits).exp().sum()
                held = torch.cat([values, native_values[b, head, seen].double()])
                rows.append((weights[:, None] * held).sum(dim=0))
    return torch.stack(rows).view(batch, query_heads, queries, -1)


def gated_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    hard: Tensor,
    log_gates: Tensor,
    native_valid: Tensor,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """Hard output and soft output, float64; keys and values [batch, head, context + native, dim], gates of -inf left out."""
    context = hard.shape[-1]
    native_keys, native_values = keys[:, :, context:], values[:, :, context:]

    def slots(keep: Tensor) -> Slots:
        return [
            [(keys[b, h, :context][keep[b, h]], values[b, h, :context][keep[b, h]]) for h in range(keys.shape[1])] for b in range(len(keys))
        ]

    opened = log_gates > float("-inf")
    gates = [[log_gates[b, h][opened[b, h]] for h in range(keys.shape[1])] for b in range(len(keys))]
    chosen = attention(query, slots(hard), native_keys, native_values, native_valid, scaling)
    soft = attention(query, slots(opened), native_keys, native_values, native_valid, scaling, gates)
    return chosen, soft


def native_states(adapter: ModelAdapter, batch: TokenBatch) -> NativeStates:
    """The model's own states over [context; query], row by row from a plain forward; zero at padding."""
    units, dim = adapter.geometry.units, adapter.geometry.head_dim
    context, query = batch.context_ids.shape[1], batch.query_ids.shape[1]
    parts = [torch.zeros(batch.batch, units, width, dim, dtype=adapter.dtype) for width in (context, context, query, query)]
    for row in range(batch.batch):
        n, q = int(batch.context_lengths[row]), int(batch.query_lengths[row])
        ids = torch.cat([batch.context_ids[row, :n], batch.query_ids[row, :q]])[None]
        states = adapter.forward(ids, capture=Capture(keys=True))
        keys, values = states.keys_pre[0].flatten(0, 1), states.values[0].flatten(0, 1)
        for part, source in zip(parts, (keys[:, :n], values[:, :n], keys[:, n:], values[:, n:])):
            part[row, :, : source.shape[1]] = source
    return NativeStates(batch.context_lengths, batch.query_lengths, *parts)


def random_selection(adapter: ModelAdapter, context_lengths: Tensor, seed: int = 0, tail: int = 1, empty: bool = False) -> Selection:
    """Random positions, other counts in every unit and row; with tail 0 some units keep nothing; `empty` keeps nothing anywhere."""
    generator = torch.Generator().manual_seed(seed)
    batch, units, width = len(context_lengths), adapter.geometry.units, int(context_lengths.max())
    tails = torch.full_like(context_lengths, tail).clamp(max=context_lengths)
    prefix = context_lengths - tails
    noise = torch.rand(batch, units, width, generator=generator)
    order = noise.masked_fill(torch.arange(width) >= prefix[:, None, None], 2.0).argsort(dim=-1)
    counts = (torch.rand(batch, units, generator=generator) * (prefix[:, None] + 1)).long()
    counts[:, :: max(units // 2, 1)] = 0
    counts = torch.zeros_like(counts) if empty else counts
    return select(order, counts, context_lengths, tails, adapter.geometry.layers, adapter.geometry.kv_heads)


def native_kv(adapter: ModelAdapter, batch: TokenBatch, selection: Selection) -> SparseKV:
    """The model's own states at a selection, rotated."""
    keys, values = gather_native(selection, native_states(adapter, batch))
    return SparseKV(selection, adapter.rotate(keys, selection.positions), values, rotated=True)


def selected(selection: Selection, context: int) -> Tensor:
    """The selection as bool [batch, unit, context], slot by slot in packed order."""
    kept = torch.zeros(selection.batch, selection.units, context, dtype=torch.bool)
    slot = 0
    for layer in range(selection.layers):
        for row in range(selection.batch):
            for head in range(selection.heads):
                unit = layer * selection.heads + head
                for _ in range(int(selection.counts[row, unit])):
                    kept[row, unit, int(selection.positions[slot])] = True
                    slot += 1
    assert slot == len(selection.positions)
    return kept


def masked_native_logits(model: PreTrainedModel, context: Tensor, query: Tensor, kept: Tensor, implementation: str) -> Tensor:
    """Stock logits [query, vocabulary] of one example whose query sees only `kept` context positions of each unit.

    Args:
        context, query: int64 ids without padding. kept: bool [layer, head, context]. implementation: "eager" or "sdpa".
    """
    n, total = len(context), len(context) + len(query)
    causal = torch.ones(total, total, dtype=torch.bool).tril()
    group = model.config.num_attention_heads // model.config.num_key_value_heads
    handles = []
    for layer, block in enumerate(model.model.layers):
        allowed = causal.expand(kept.shape[1], total, total).clone()
        allowed[:, n:, :n] &= kept[layer][:, None]
        bias = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min).repeat_interleave(group, dim=0)[None]

        def replace(_module, args, kwargs, bias=bias):  # type: ignore[no-untyped-def]
            return args, {**kwargs, "attention_mask": bias}

        handles.append(block.self_attn.register_forward_pre_hook(replace, with_kwargs=True))
    try:
        with torch.no_grad(), compat.stock_attention(model, implementation):
            return model(torch.cat([context, query])[None]).logits[0, n:]
    finally:
        for handle in handles:
            handle.remove()
