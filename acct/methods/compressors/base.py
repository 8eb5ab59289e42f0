"""What the compressors share: scores of context positions, counts under ACCT's budget, and the target's own states at the selection.

    I_p = top (k_p - t) of the prefix by score, ties by lower position, and the tail;   sum_p k_p = P k     (spec 3's budget rule)

The budget and the tail are ACCT's, so that a compressor differs from `native_kv` in nothing but which tokens are kept. No source
and no trained module is involved. What kvpress would always keep (SnapKV's window, the sinks) ranks first here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acct.allocator.budget import Budget
from acct.cartographer import rank_prefix
from acct.config.compressors import CompressorsConfig
from acct.methods.base import SparseMethod
from acct.methods.compressors.observed import Observed, observe
from acct.methods.prepared import Prepared
from acct.selection import select
from acct.types import Selection, SparseKV

SUFFIX = "_query_aware"
Score = Callable[[Observed, Budget, CompressorsConfig], Tensor]
Counts = Callable[[Observed, Budget, CompressorsConfig], Tensor]


def equal_counts(observed: Observed, budget: Budget, settings: CompressorsConfig) -> Tensor:
    """k - t ranked slots for every unit: int64 [unit]."""
    return torch.full((len(observed.keys),), budget.mean_capacity - budget.tail, dtype=torch.int64)


@dataclass(frozen=True)
class Rule:
    """A compressor.

    Attributes:
        score: [unit, L] of all places, those of the query are not read. counts: ranked slots int64 [unit], summing to P (k - t).
    """

    score: Score
    counts: Counts = equal_counts


class Compressor(SparseMethod):
    """A compressor as a row of the tables; leaves name a rule and whether it sees the query.

    Attributes:
        rule: scores and counts. query_aware: scores [context; query] in place of the context alone.
    """

    on_request: ClassVar[bool] = True
    rule: ClassVar[Rule]
    query_aware: ClassVar[bool] = False
    compiles: ClassVar[bool] = False

    def states(self, prepared: Prepared) -> SparseKV:
        return prepared.native_at(self.selection(prepared))

    @torch.no_grad()
    def selection(self, prepared: Prepared) -> Selection:
        """The positions that every unit of the target keeps."""
        adapter, settings, budget_rule = prepared.pair.target, prepared.compressors, prepared.interface.rule
        batch, states = prepared.on(adapter), prepared.observed
        lengths, geometry = batch.context_lengths, adapter.geometry
        scores = torch.zeros(batch.batch, geometry.units, batch.context_ids.shape[1], device=adapter.device)
        counts = torch.zeros(batch.batch, geometry.units, dtype=torch.int64, device=adapter.device)
        with prepared.clock.phase(f"select {self.name}"):
            for row, (context, query) in enumerate(zip(lengths.tolist(), batch.query_lengths.tolist())):
                observed = observe(adapter, states, row, context, context + query if self.query_aware else context)
                budget = budget_rule.resolve(context)
                scores[row, :, :context] = self.rule.score(observed, budget, settings)[:, :context]
                counts[row] = self.rule.counts(observed, budget, settings)
            tails = budget_rule.tails(lengths)
            return select(rank_prefix(scores, lengths - tails), counts, lengths, tails, geometry.layers, geometry.kv_heads)
