"""Deletion utilities of a batch, from the target itself reading [context; query; its own greedy continuation] (spec 5, paper B.1).

One full forward over [context; query] keeps keys, values and the queries of the last query positions; the continuation is then
decoded token by token after those states, each step adding its own attention row. Continuations are used for supervision only.
Layers are sampled for each example. States stay in the target's dtype; utilities are computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from acct.models.adapter import Capture, ModelAdapter
from acct.models.batching import last_query_places
from acct.supervision.utility import rows_utility
from acct.types import TokenBatch


@dataclass(frozen=True)
class UtilityTargets:
    """What a scoring step learns from.

    Attributes:
        units: int64 [batch, unit], the sampled target units of each example, ascending; all heads of the sampled layers.
        utilities: float32 [batch, unit, context], 0 at padding.
        continuations: the target's greedy tokens for each example, the stop token not included.
    """

    units: Tensor
    utilities: Tensor
    continuations: list[list[int]]


@dataclass(frozen=True)
class AttentionRows:
    """The target's states over [context; query; continuation], and the queries of the rows that are looked at.

    Attributes:
        keys_pre, values: [batch, layer, head, history, dim], right-padded without gaps inside a row.
        queries_pre: [batch, layer, query_head, row, dim], last query positions and then continuation positions.
        positions: int64 [batch, row], place of each row in the history. valid: bool [batch, row].
        lengths: int64 [batch], tokens of each history.
        continuations: greedy tokens of each example, without the stop token.
    """

    keys_pre: Tensor
    values: Tensor
    queries_pre: Tensor
    positions: Tensor
    valid: Tensor
    lengths: Tensor
    continuations: list[list[int]]


@torch.no_grad()
def attention_rows(
    adapter: ModelAdapter, batch: TokenBatch, query_rows: int = 8, continuation_rows: int = 8, stop_ids: Sequence[int] = ()
) -> AttentionRows:
    """Run the target over a batch and up to `continuation_rows` greedy tokens after it.

    Args:
        query_rows: last query positions looked at; an example with a shorter query gives fewer.
        stop_ids: a continuation ends before any of these.
    """
    batch = batch.to(adapter.device)
    ids, totals = batch.joined()
    places, valid = last_query_places(batch.context_lengths, batch.query_lengths, query_rows)
    last = adapter.geometry.layers
    states = adapter.forward(ids, totals, Capture((last,), keys=True, queries=True), query_positions=places)
    assert states.hidden is not None and states.keys_pre is not None and states.values is not None and states.queries_pre is not None
    keys = F.pad(states.keys_pre, (0, 0, 0, continuation_rows))
    values = F.pad(states.values, (0, 0, 0, continuation_rows))
    queries, positions, valids = [states.queries_pre], [places], [valid]
    stops = torch.tensor(list(stop_ids), dtype=torch.int64, device=ids.device)
    example = torch.arange(batch.batch, device=ids.device)
    hidden = states.hidden[0][example, totals - 1]  # [batch, hidden]
    lengths, alive = totals.clone(), torch.ones_like(valid[:, 0])
    written: list[Tensor] = []
    for _ in range(continuation_rows):
        token = adapter.logits_of(hidden).argmax(dim=-1)  # [batch]
        alive = alive & ~torch.isin(token, stops)
        if not bool(alive.any()):
            break
        written.append(torch.where(alive, token, -1))
        width = int(lengths.max())
        step = adapter.forward_after(
            keys[..., :width, :], values[..., :width, :], lengths, token[:, None], torch.ones_like(lengths), Capture((last,), True, True)
        )
        assert step.hidden is not None and step.keys_pre is not None and step.values is not None and step.queries_pre is not None
        # A finished row writes one place beyond its length, which nothing sees.
        keys[example, :, :, lengths] = step.keys_pre[..., 0, :]
        values[example, :, :, lengths] = step.values[..., 0, :]
        queries.append(step.queries_pre)
        positions.append(lengths[:, None])
        valids.append(alive[:, None])
        lengths = lengths + alive
        hidden = step.hidden[0][:, 0]
    width = int(lengths.max())
    continuations = [[int(token[row]) for token in written if int(token[row]) >= 0] for row in range(batch.batch)]
    return AttentionRows(
        keys[..., :width, :],
        values[..., :width, :],
        torch.cat(queries, dim=3),
        torch.cat(positions, dim=1).clamp(max=width - 1),
        torch.cat(valids, dim=1),
        lengths,
        continuations,
    )


def sample_layers(layers: int, batch: int, limit: int, generator: torch.Generator) -> Tensor:
    """min(limit, layers) different layers for each example, ascending: int64 [batch, layer], on the CPU."""
    return torch.rand(batch, layers, generator=generator).argsort(dim=-1)[:, :limit].sort(dim=-1).values


@torch.no_grad()
def utility_targets(
    adapter: ModelAdapter,
    batch: TokenBatch,
    generator: torch.Generator,
    layers: int = 4,
    query_rows: int = 8,
    continuation_rows: int = 8,
    stop_ids: Sequence[int] = (),
    floor: float = 1e-4,
    epsilon: float = 1e-6,
    read: Callable[..., AttentionRows] = attention_rows,
) -> UtilityTargets:
    """Deletion utilities of every context position for all heads of up to `layers` sampled target layers.

    Args:
        generator: on the CPU, samples the layers. The other arguments: see `attention_rows` and `deletion_utility`.
        read: gives the attention rows, like `attention_rows`.
    Returns:
        tensors on the target's device; utilities [batch, unit, context] as wide as `batch.context_ids`.
    """
    rows = read(adapter, batch, query_rows, continuation_rows, stop_ids)
    device = rows.lengths.device
    shape = adapter.geometry
    chosen = sample_layers(shape.layers, batch.batch, layers, generator).to(device)
    example = torch.arange(batch.batch, device=device)[:, None]
    parts = (part[example, chosen] for part in (rows.keys_pre, rows.values, rows.queries_pre))
    context, lengths = batch.context_ids.shape[1], batch.context_lengths.to(device)
    utilities = rows_utility(adapter, *parts, rows.positions, rows.valid, rows.lengths, lengths, context, floor, epsilon)
    units = (chosen[..., None] * shape.kv_heads + torch.arange(shape.kv_heads, device=device)).flatten(1)
    return UtilityTargets(units, utilities, rows.continuations)
