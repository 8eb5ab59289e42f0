"""The Cartographer's pair loss (spec 5, paper B.1): mean softplus(-(s_i - s_j) / (std(s_p) + epsilon))."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from acct.supervision.pairs import Pairs


def score_deviation(scores: Tensor, prefix_lengths: Tensor) -> Tensor:
    """Population standard deviation of each unit's scores over its prefix: [batch, unit]; finite gradient where it is 0."""
    n = prefix_lengths.to(scores.device)[:, None, None]
    inside = torch.arange(scores.shape[-1], device=scores.device) < n
    count = n.clamp(min=1)[..., 0]
    mean = scores.masked_fill(~inside, 0.0).sum(dim=-1) / count
    variance = (scores - mean[..., None]).masked_fill(~inside, 0.0).square().sum(dim=-1) / count
    return (variance + 1e-24).sqrt()


def scoring_loss(scores: Tensor, pairs: Pairs, prefix_lengths: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Mean over all valid pairs of softplus(-(s_winner - s_loser) / (std + epsilon)).

    Dividing by the deviation (gradient included) leaves nothing to gain from larger scores.

    Args:
        scores: [batch, unit, context] for the units that the pairs belong to. prefix_lengths: int64 [batch], n.
    Returns:
        a scalar; 0, still in the graph, where no pair is valid.
    """
    gap = scores.gather(-1, pairs.winners) - scores.gather(-1, pairs.losers)
    losses = F.softplus(-gap / (score_deviation(scores, prefix_lengths)[..., None] + epsilon))
    return losses.masked_fill(~pairs.valid, 0.0).sum() / pairs.valid.sum().clamp(min=1)
