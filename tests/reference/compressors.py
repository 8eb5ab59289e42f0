"""Slow float64 twins of the same-model compressors, from a stock run that returns its whole attention matrices.

One example without padding, one layer and head at a time, straight from the formulas. Shares no code with `acct.methods.compressors`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acct.models import compat


@dataclass(frozen=True)
class Run:
    """A stock run: attention [layer, query_head, L, L], queries before RoPE [layer, query_head, L, dim], rotated keys and values
    [layer, head, L, dim], all float64."""

    attention: Tensor
    queries_pre: Tensor
    keys: Tensor
    values: Tensor


def run(model: PreTrainedModel, ids: Tensor) -> Run:
    """ids: int64 [L]."""
    with torch.no_grad(), compat.stock_attention(model, "eager"):
        out = model(ids[None], output_attentions=True, output_hidden_states=True, use_cache=True)
    queries = []
    for block, hidden in zip(model.model.layers, out.hidden_states):
        part = block.self_attn.q_proj(block.input_layernorm(hidden[0])).view(len(ids), -1, block.self_attn.head_dim)
        norm = getattr(block.self_attn, "q_norm", None)
        queries.append((part if norm is None else norm(part)).transpose(0, 1))
    layers = out.past_key_values.layers
    return Run(
        torch.stack(out.attentions)[:, 0].double(), torch.stack(queries).detach().double(),
        torch.stack([layer.keys[0] for layer in layers]).double(), torch.stack([layer.values[0] for layer in layers]).double(),
    )  # fmt: skip


def _over_group(one: Run, per_head: list[list[Tensor]]) -> Tensor:
    """Means over the query heads of each KV head: [layer, head, place]."""
    layers, heads = one.keys.shape[:2]
    group = one.attention.shape[1] // heads
    return torch.stack([torch.stack([sum(per_head[i][h * group : (h + 1) * group]) / group for h in range(heads)]) for i in range(layers)])


def snapkv(one: Run, window: int, kernel: int) -> Tensor:
    """[layer, head, L - window]."""
    length = one.keys.shape[2]
    before = length - window
    found = []
    for layer in one.attention:
        pooled = []
        for matrix in layer:
            mean = [sum(float(matrix[row, i]) for row in range(before, length)) / window for i in range(before)]
            near = [mean[max(i - kernel // 2, 0) : i + kernel // 2 + 1] for i in range(before)]
            pooled.append(torch.tensor([sum(part) / kernel for part in near], dtype=torch.float64))
        found.append(pooled)
    return _over_group(one, found)


def observed_attention(one: Run) -> Tensor:
    """[layer, head, L]."""
    length = one.keys.shape[2]
    sums = [[torch.stack([matrix[i:, i].sum() / (length - i) for i in range(length)]) for matrix in layer] for layer in one.attention]
    return _over_group(one, sums)


def expected_attention(
    one: Run, model: PreTrainedModel, future: int, sinks: int, covariance: bool, value_norm: bool, epsilon: float
) -> Tensor:
    """[layer, head, L - sinks]."""
    length, dim = one.keys.shape[2:]
    rotation = torch.zeros(dim, dim, dtype=torch.float64)
    for place in range(length, length + future):
        cos, sin = (t[0, 0].double() for t in model.model.rotary_emb(torch.zeros(1), torch.tensor([[place]])))
        for i in range(dim):
            partner = (i + dim // 2) % dim
            rotation[i, i] += cos[i] / future
            rotation[i, partner] += (-sin[i] if i < dim // 2 else sin[i]) / future
    group = one.queries_pre.shape[1] // one.keys.shape[1]
    found = []
    for layer in range(len(one.keys)):
        heads = []
        for q_head, queries in enumerate(one.queries_pre[layer]):
            kept = queries[sinks:]
            mean = kept.mean(dim=0)
            spread = sum(torch.outer(q - mean, q - mean) for q in kept) / len(kept)
            logits = []
            for key in one.keys[layer, q_head // group, sinks:]:
                logit = key @ rotation @ mean / math.sqrt(dim)
                logits.append(logit + (key @ rotation @ spread @ rotation.T @ key / (2 * dim) if covariance else 0.0))
            heads.append(torch.stack(logits).softmax(dim=0))
        found.append(heads)
    scores = _over_group(one, found)
    return (scores + epsilon) * one.values[:, :, sinks:].norm(dim=-1) if value_norm else scores
