"""SnapKV (Li et al. 2024, arXiv 2404.14469): tokens that the last w tokens attend to.

    a_i = mean over the w rows of softmax(q K^T)_i, i < L - w;   s = mean over query heads of avgpool_kernel(a)
    s_i = max + 1 in the window

The average of `kernel` places counts places outside as zero. Only w rows of attention exist. The window's context tokens rank
first; how many they may be is limited (evaluation.compressors.window_share), because a budget of ACCT's may be smaller than kvpress's
window. In a query-aware run the window ends with the query, which costs nothing: a query of w or more tokens is all of it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from acct.allocator.budget import Budget
from acct.config.compressors import CompressorsConfig
from acct.methods.compressors.base import Compressor, Rule
from acct.methods.compressors.observed import Observed, attention_rows


def context_window(observed: Observed, budget: Budget, settings: CompressorsConfig) -> int:
    """Context tokens inside the observation window, in [0, N]; at least 1 where no query is in it."""
    query = observed.length - observed.context_length
    allowed = min(max(settings.window - query, 0), int(settings.window_share * budget.mean_capacity), observed.context_length)
    return allowed if query else max(allowed, 1)


def score(observed: Observed, budget: Budget, settings: CompressorsConfig) -> Tensor:
    """SnapKV's scores: float [unit, L]."""
    query = observed.length - observed.context_length
    window = min(settings.window, query + context_window(observed, budget, settings))
    before = observed.length - window
    units, group = observed.queries_pre.shape[:2]
    summed = observed.keys.new_zeros(units, group, observed.length)
    for chosen, _, weights in attention_rows(observed, before, settings.block):
        summed[chosen] += weights.sum(dim=2)
    found = observed.keys.new_zeros(units, observed.length)
    if before:
        seen = summed[..., :before] / window
        found[:, :before] = functional.avg_pool1d(seen, settings.kernel, stride=1, padding=settings.kernel // 2).mean(dim=1)
    found[:, before:] = torch.inf  # above every score, as kvpress's max + 1
    return found


SNAPKV = Rule(score)


class SnapKV(Compressor):
    """SnapKV over the context alone."""

    name = "snapkv"
    rule = SNAPKV


class SnapKVQueryAware(Compressor):
    """SnapKV over [context; query]."""

    name = "snapkv_query_aware"
    rule = SNAPKV
    query_aware = True
