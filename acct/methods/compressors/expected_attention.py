"""Expected attention (kvpress; Devoto et al. 2025): the attention that queries still to come are expected to pay.

Queries before RoPE are taken as Gaussian with the sequence's mean mu and covariance C (its first `sinks` tokens left out), and R is
RoPE averaged over the `future_positions` places after the sequence:

    z_i = k_i^T R mu / sqrt(d) + k_i^T R C R^T k_i / (2 d),   s_i = mean over query heads of softmax(z)_i (+ epsilon) * ||v_i||

over the tokens that are no sinks; sinks rank first. Only statistics of the queries meet the keys: nothing here is L x L.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acct.allocator.budget import Budget
from acct.config.compressors import CompressorsConfig
from acct.methods.compressors.base import Compressor, Rule
from acct.methods.compressors.observed import Observed
from acct.models.rotary import half


def query_statistics(observed: Observed, sinks: int, settings: CompressorsConfig) -> tuple[Tensor, Tensor | None]:
    """R mu [unit, group, dim], and R C R^T [unit, group, dim, dim] if the covariance is used."""
    future = torch.arange(observed.length, observed.length + settings.future_positions, device=observed.keys.device)
    cos, sin = (t.mean(dim=0) for t in observed.adapter.rotary.cos_sin(future, observed.keys.dtype, observed.length))

    def rotated(x: Tensor) -> Tensor:
        return x * cos + half(x) * sin

    queries = observed.queries_pre[:, :, sinks:]
    mean = queries.mean(dim=2, keepdim=True)
    if not settings.covariance:
        return rotated(mean[:, :, 0]), None
    centred = queries - mean
    covariance = centred.transpose(-1, -2) @ centred / queries.shape[2]
    return rotated(mean[:, :, 0]), rotated(rotated(covariance).transpose(-1, -2))  # symmetric: the order does not matter


def score(observed: Observed, budget: Budget, settings: CompressorsConfig) -> Tensor:
    """Expected attention weighed by the norm of values: float [unit, L]."""
    sinks = min(settings.sinks, observed.length - 1)
    mean, covariance = query_statistics(observed, sinks, settings)
    scaling = observed.adapter.scaling
    found = torch.full_like(observed.keys[..., 0], torch.inf)  # the sinks, as kvpress's max + 1
    units, group = observed.queries_pre.shape[:2]
    step = max(settings.block // (group * observed.keys[0].numel()), 1)
    for first in range(0, units, step):
        chosen = slice(first, first + step)
        keys = observed.keys[chosen, None, sinks:]  # [unit, 1, place, dim]
        logits = (keys @ mean[chosen, :, :, None])[..., 0] * scaling
        if covariance is not None:
            logits += (keys @ covariance[chosen] * keys).sum(dim=-1) * (scaling**2 / 2)
        expected = logits.softmax(dim=-1).mean(dim=1)  # [unit, place]
        if settings.value_norm:
            expected = (expected + settings.epsilon) * observed.values[chosen, sinks:].norm(dim=-1)
        found[chosen, sinks:] = expected
    return found


EXPECTED = Rule(score)


class ExpectedAttention(Compressor):
    """Expected attention over the context alone."""

    name = "expected_attention"
    rule = EXPECTED


class ExpectedAttentionQueryAware(Compressor):
    """Expected attention over [context; query]."""

    name = "expected_attention_query_aware"
    rule = EXPECTED
    query_aware = True
