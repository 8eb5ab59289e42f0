"""Observed attention, kvpress's H2O (Zhang et al. 2023, arXiv 2306.14048): the mean attention that a token receives.

    s_i = mean over query heads of sum_j a_ji / (L - i)          L - i: the rows j >= i that can see token i

H2O itself evicts while it generates; as in kvpress the scores here are taken once, over the whole sequence. Column sums are gathered from
blocks of rows, so that no L x L matrix exists.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acct.allocator.budget import Budget
from acct.config.compressors import CompressorsConfig
from acct.methods.compressors.base import Compressor, Rule
from acct.methods.compressors.observed import Observed, attention_rows


def score(observed: Observed, budget: Budget, settings: CompressorsConfig) -> Tensor:
    """Mean attention received: float [unit, L]."""
    received = observed.keys.new_zeros(len(observed.keys), observed.length)
    for chosen, _, weights in attention_rows(observed, 0, settings.block):
        received[chosen] += weights.sum(dim=2).mean(dim=1)
    return received / torch.arange(observed.length, 0, -1, device=received.device)


OBSERVED = Rule(score)


class ObservedAttention(Compressor):
    """Observed attention over the context alone."""

    name = "observed_attention"
    rule = OBSERVED


class ObservedAttentionQueryAware(Compressor):
    """Observed attention over [context; query]."""

    name = "observed_attention_query_aware"
    rule = OBSERVED
    query_aware = True
