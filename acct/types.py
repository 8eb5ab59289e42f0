"""The frozen dataclasses that modules exchange, and the names of their axes.

Axes, outermost first:

    batch      examples of one batch
    layer      decoder layers; `head` KV heads; `query_head` query heads; `unit` = target layer * H_T + head
    context    context positions, right-padded to the longest of the batch; padding is zero, never NaN
    query      query positions, right-padded apart from the context
    slot       kept KV entries of all units and examples, packed without padding
    dim        head width; `hidden` model width; `tap` intermediate layers (3)

Packed order of `slot` everywhere: layer, then batch, then head, then ascending position, so that one layer is one
contiguous slice. `position` is a context index, `rank` a place in a unit's ranking (0 the best), `slot` a place in the packing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """Token ids of [context; query], padded apart on the right.

    Attributes:
        context_ids: int64 [batch, context]. context_lengths: int64 [batch], N of each example (0 only where there is no context).
        query_ids: int64 [batch, query]. query_lengths: int64 [batch], Q of each example, at least 1.
    """

    context_ids: Tensor
    context_lengths: Tensor
    query_ids: Tensor
    query_lengths: Tensor

    @property
    def batch(self) -> int:
        return self.context_ids.shape[0]

    def joined(self) -> tuple[Tensor, Tensor]:
        """[context; query] without a gap, right-padded with zeros: ids [batch, sequence] and lengths [batch]."""
        lengths = self.context_lengths + self.query_lengths
        place = torch.arange(int(lengths.max()), device=lengths.device).expand(self.batch, -1)  # [batch, sequence]
        starts = self.context_lengths[:, None]
        column = torch.where(place < starts, place, place - starts + self.context_ids.shape[1])
        both = torch.cat((self.context_ids, self.query_ids), dim=1)
        ids = both.gather(1, column.clamp(max=both.shape[1] - 1))
        return ids.masked_fill(place >= lengths[:, None], 0), lengths

    def to(self, device: torch.device | str) -> TokenBatch:
        return TokenBatch(*(t.to(device) for t in (self.context_ids, self.context_lengths, self.query_ids, self.query_lengths)))


@dataclass(frozen=True)
class SourceStates:
    """R_S(c) = (H_c, taps, K_S, V_S), and H_q when a query was read with it (spec 1).

    Attributes:
        context_ids: int64 [batch, context]. context_lengths: int64 [batch].
        context_hidden: H_c [batch, context, hidden], after the final norm.
        taps: [batch, tap, context, hidden].
        keys_pre: [batch, layer, head, context, dim], after native normalisation and before RoPE. values: the same shape.
        query_hidden: H_q [batch, query, hidden] or None. query_lengths: int64 [batch] or None.
        query_utilities: float32 [batch, source unit, context], what the source would miss of the context (`acct.source_utility`), or None.
        identity: what these states were computed from (model fingerprint, token hash, dtype); travels with a saved file.
    """

    context_ids: Tensor
    context_lengths: Tensor
    context_hidden: Tensor
    taps: Tensor
    keys_pre: Tensor
    values: Tensor
    query_hidden: Tensor | None = None
    query_lengths: Tensor | None = None
    query_utilities: Tensor | None = None
    identity: Mapping[str, str] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return self.context_ids.shape[0]

    def to(self, device: torch.device | str) -> SourceStates:
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True)
class NativeStates:
    """What the target itself computes over [context; query]: the teacher of every stage, never an input of the method.

    Attributes:
        context_lengths, query_lengths: int64 [batch].
        context_keys_pre, context_values: [batch, unit, context, dim], keys before RoPE.
        query_keys_pre, query_values: [batch, unit, query, dim].
        queries_pre: q* before RoPE [batch, layer, query_head, query, dim], or None when not asked for.
        logits: [batch, query, vocabulary] at the query positions, or None when not asked for.
    """

    context_lengths: Tensor
    query_lengths: Tensor
    context_keys_pre: Tensor
    context_values: Tensor
    query_keys_pre: Tensor
    query_values: Tensor
    queries_pre: Tensor | None = None
    logits: Tensor | None = None


@dataclass(frozen=True)
class Selection:
    """Which context positions every unit keeps: I_p = top-k_p of the ranking, and the tail (spec 3).

    Attributes:
        layers, heads: L_T and H_T.
        context_lengths: int64 [batch]. tails: int64 [batch], t of each example.
        counts: int64 [batch, unit], |I_p|, tail included.
        positions: int64 [slot], context positions in packed order.
        ranks: int64 [slot], r_{p,i} of ranked slots; 0 for tail slots.
        is_tail: bool [slot].
    """

    layers: int
    heads: int
    context_lengths: Tensor
    tails: Tensor
    counts: Tensor
    positions: Tensor
    ranks: Tensor
    is_tail: Tensor

    @property
    def batch(self) -> int:
        return self.counts.shape[0]

    @property
    def units(self) -> int:
        return self.layers * self.heads


@dataclass(frozen=True)
class SparseKV:
    """Target keys and values at a selection, packed: 2 P k d numbers for an example.

    Attributes:
        selection: the positions of the slots.
        keys, values: [slot, dim] in the selection's packed order.
        rotated: whether the keys carry the target's RoPE at their original positions.
        identity: source, mapper and budget of transferred states; they never satisfy a look-up for exact states.
    """

    selection: Selection
    keys: Tensor
    values: Tensor
    rotated: bool
    identity: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GatedKV:
    """Native target states at every context position under hard gates with a soft backward path (spec 3, Allocation loss).

    Attributes:
        context_lengths: int64 [batch].
        keys: post-RoPE [batch, unit, context, dim]. values: the same shape.
        hard: bool [batch, unit, context], the selection that the forward pass uses.
        log_gates: [batch, unit, context], log g, zero at the tail, carrying gradient; -inf where g = 0.
    """

    context_lengths: Tensor
    keys: Tensor
    values: Tensor
    hard: Tensor
    log_gates: Tensor
