"""The Compilation loss one vector, one attention row at a time, in the inputs' dtype (float64); formulas as in spec 5."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from acct.selection import batch_index, unit_index
from acct.types import NativeStates, Selection

Rotate = Callable[[Tensor, Tensor, Tensor], Tensor]


def _over_examples(per_slot: list[Tensor], selection: Selection) -> Tensor:
    examples = batch_index(selection).tolist()
    means = []
    for b in range(selection.batch):
        own = [value for value, example in zip(per_slot, examples) if example == b]
        if own:
            means.append(sum(own) / len(own))
    return sum(means) / len(means)  # type: ignore[return-value]


def _norm(v: Tensor) -> Tensor:
    return v.norm() if bool((v != 0).any()) else (v * 0).sum()


def key_direction(compiled: Tensor, native: Tensor, selection: Selection, epsilon: float = 1e-6) -> Tensor:
    def one(a: Tensor, b: Tensor) -> Tensor:
        return 1 - (a @ b) / (max(_norm(a), torch.tensor(epsilon)) * max(_norm(b), torch.tensor(epsilon)))

    return _over_examples([one(a, b) for a, b in zip(compiled, native)], selection)


def key_scale(compiled: Tensor, native: Tensor, selection: Selection, epsilon: float = 1e-6) -> Tensor:
    def root(v: Tensor) -> Tensor:
        return (v @ v / len(v) + epsilon).sqrt()

    return _over_examples([(root(a).log() - root(b).log()) ** 2 for a, b in zip(compiled, native)], selection)


def value(compiled: Tensor, native: Tensor, selection: Selection, epsilon: float = 1e-6) -> Tensor:
    def one(a: Tensor, b: Tensor) -> Tensor:
        return (a - b) @ (a - b) / (len(b) * (b @ b / len(b) + epsilon))

    return _over_examples([one(a, b) for a, b in zip(compiled, native)], selection)


def attention(
    compiled_pre: Tensor, native: NativeStates, selection: Selection, rotate: Rotate, scaling: float, positions: int = 32
) -> Tensor:
    """From pre-RoPE compiled keys [slot, dim]: full rows of both softmaxes, one (example, layer, query head, row) at a time."""
    assert native.queries_pre is not None
    examples, units = batch_index(selection), unit_index(selection)
    query_heads = native.queries_pre.shape[2]
    group = query_heads // selection.heads
    means = []
    for b in range(selection.batch):
        n, q = int(native.context_lengths[b]), int(native.query_lengths[b])
        total = torch.tensor(n + q)
        along = n + torch.arange(q)
        divergences = []
        for layer in range(selection.layers):
            for query_head in range(query_heads):
                unit = layer * selection.heads + query_head // group
                slots = ((examples == b) & (units == unit)).nonzero()[:, 0]
                where = selection.positions[slots]
                context = {
                    "native": rotate(native.context_keys_pre[b, unit, where], where, total),
                    "compiled": rotate(compiled_pre[slots], where, total),
                }
                query_keys = rotate(native.query_keys_pre[b, unit, :q], along, total)
                vectors = rotate(native.queries_pre[b, layer, query_head, :q], along, total)
                for j in range(max(0, q - positions), q):
                    logs = {
                        side: (scaling * torch.cat([keys, query_keys[: j + 1]]) @ vectors[j]).log_softmax(0)
                        for side, keys in context.items()
                    }
                    divergences.append((logs["native"].exp() * (logs["native"] - logs["compiled"])).sum())
        means.append(sum(divergences) / len(divergences))
    return sum(means) / len(means)  # type: ignore[return-value]


def attention_output(
    compiled_pre: Tensor, compiled_values: Tensor, native: NativeStates, selection: Selection, rotate: Rotate, scaling: float,
    positions: int = 32, epsilon: float = 1e-6,
) -> Tensor:  # fmt: skip
    """What each row reads, one (example, layer, query head, row) at a time, over native and over compiled context slots."""
    assert native.queries_pre is not None
    examples, units = batch_index(selection), unit_index(selection)
    query_heads = native.queries_pre.shape[2]
    total_loss = compiled_pre.sum() * 0
    for b in range(selection.batch):
        n, q = int(native.context_lengths[b]), int(native.query_lengths[b])
        total, along = torch.tensor(n + q), n + torch.arange(q)
        for layer in range(selection.layers):
            error, size = compiled_pre.sum() * 0, 0.0
            for query_head in range(query_heads):
                unit = layer * selection.heads + query_head // (query_heads // selection.heads)
                slots = ((examples == b) & (units == unit)).nonzero()[:, 0]
                where = selection.positions[slots]
                context = [
                    (rotate(native.context_keys_pre[b, unit, where], where, total), native.context_values[b, unit, where]),
                    (rotate(compiled_pre[slots], where, total), compiled_values[slots]),
                ]
                query_keys = rotate(native.query_keys_pre[b, unit, :q], along, total)
                vectors = rotate(native.queries_pre[b, layer, query_head, :q], along, total)
                for j in range(max(0, q - positions), q):
                    full, own = (
                        (scaling * torch.cat([keys, query_keys[: j + 1]]) @ vectors[j]).softmax(0)
                        @ torch.cat([values, native.query_values[b, unit, : j + 1]])
                        for keys, values in context
                    )
                    error, size = error + (own - full).square().sum(), size + float(full.square().sum())
            total_loss = total_loss + error / (size + epsilon)
    return total_loss / (selection.batch * selection.layers)


def behaviour(student_logits: Tensor, teacher_logits: Tensor, query_lengths: Tensor, positions: int = 8) -> Tensor:
    means = []
    for b, length in enumerate(query_lengths.tolist()):
        rows = []
        for j in range(max(0, length - positions), length):
            teacher, student = teacher_logits[b, j].softmax(0), student_logits[b, j].softmax(0)
            rows.append((teacher * (teacher / student).log()).sum())
        means.append(sum(rows) / len(rows))
    return sum(means) / len(means)  # type: ignore[return-value]
