"""PyramidKV (Cai et al. 2024, arXiv 2406.02069): SnapKV's scores, and more tokens in lower layers.

Layers share the budget linearly, layer 0 the most and the last layer about 1 / beta of the mean. Two readings, one field:

    kvpress         k_l from 2k - k / beta down to k / beta (the first at most N - w);  equal where k / beta < w
    beside_window   w in every layer, and beside it from 2m - m / beta down to m / beta, m = k - w

The sum is P (k - t) ranked slots exactly, rounded by largest remainder over units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acct.allocator.budget import Budget, round_capacities
from acct.config.compressors import CompressorsConfig
from acct.methods.compressors.base import Compressor, Rule, equal_counts
from acct.methods.compressors.observed import Observed
from acct.methods.compressors.snapkv import context_window, score


def layer_capacities(layers: int, budget: Budget, window: int, settings: CompressorsConfig) -> Tensor | None:
    """Slots of a unit in each layer, tail included: float64 [layer] with mean k, or None where all layers get the same.

    Args:
        window: w, tokens that every layer keeps; kvpress's reading takes the configured window, the other what the context holds of it.
    """
    kept = max(window, budget.tail)
    fixed = kept if settings.pyramid == "beside_window" else 0
    shared, most = budget.mean_capacity - fixed, budget.context_length - kept
    low = shared / settings.beta
    high = 2 * shared - low
    if high >= most:
        high, low = most, 2 * shared - most
    if layers == 1 or not high >= low >= kept - fixed:
        return None
    return fixed + torch.linspace(high, low, layers, dtype=torch.float64)


def counts(observed: Observed, budget: Budget, settings: CompressorsConfig) -> Tensor:
    """Ranked slots of every unit: int64 [unit], falling from layer to layer."""
    geometry = observed.adapter.geometry
    window = settings.window if settings.pyramid == "kvpress" else context_window(observed, budget, settings)
    by_layer = layer_capacities(geometry.layers, budget, window, settings)
    if by_layer is None:
        return equal_counts(observed, budget, settings)
    ranked = (by_layer - budget.tail).repeat_interleave(geometry.kv_heads)
    return round_capacities(ranked, budget.prefix, budget.prefix_budget(geometry.units))


PYRAMIDKV = Rule(score, counts)


class PyramidKV(Compressor):
    """PyramidKV over the context alone."""

    name = "pyramidkv"
    rule = PYRAMIDKV


class PyramidKVQueryAware(Compressor):
    """PyramidKV over [context; query]."""

    name = "pyramidkv_query_aware"
    rule = PYRAMIDKV
    query_aware = True
