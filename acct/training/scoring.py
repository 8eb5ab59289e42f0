"""First stage: the Cartographer learns the order of deletion utilities (spec 2, 5; paper B.1).

A step reads the source once over [c; q], the target once over [c; q] and through its own greedy continuation for the utilities of some
layers, and scores those units only. Besides the loss it reports what the loss is for: on held-out examples, the rank correlation of
scores with utilities, and the share of the utility in reach that the top k - t positions of a ranking hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from acct.cartographer import Cartographer
from acct.generation import stop_tokens
from acct.losses.scoring import scoring_loss
from acct.supervision.pairs import sample_pairs
from acct.supervision.teacher import UtilityTargets, utility_targets
from acct.training.loop import Terms
from acct.training.selections import batches_of
from acct.training.session import Examples, Session
from acct.types import SourceStates, TokenBatch


class ScoringTask:
    """The loss over batches of one list of examples."""

    def __init__(self, session: Session, examples: Examples, cartographer: Cartographer):
        self.session, self.examples, self.cartographer = session, examples, cartographer
        self.stops = stop_tokens(session.pair.target)

    def supervise(self, batch: TokenBatch, generator: torch.Generator) -> UtilityTargets:
        """Utilities of the units of some layers, from the target."""
        config = self.session.config.supervision
        return utility_targets(
            self.session.pair.target, batch, generator, layers=config.layers, query_rows=config.query_rows,
            continuation_rows=config.continuation_rows, stop_ids=self.stops, floor=config.utility_floor, epsilon=config.utility_epsilon,
            read=self.session.states.rows,
        )  # fmt: skip

    def scores(self, states: SourceStates, units: Tensor) -> Tensor:
        """Scores of the given units [batch, unit] at every context position."""
        assert states.query_hidden is not None and states.query_lengths is not None
        return self.cartographer(
            states.context_hidden, states.context_lengths, states.query_hidden, states.query_lengths, units,
            self.session.config.cartographer.block, states.query_utilities,
        )  # fmt: skip

    def _batch(self, indices: Sequence[int], generator: torch.Generator) -> tuple[SourceStates, UtilityTargets, Tensor, Tensor]:
        """Source states, utilities on the interface's device, n and k - t of each example."""
        session = self.session
        batch, device = self.examples.batch(indices), session.device
        states = session.read_source(batch).to(device)
        found = self.supervise(batch, generator)
        found = UtilityTargets(found.units.to(device), found.utilities.to(device), found.continuations)
        tails = session.rule.tails(states.context_lengths)
        return states, found, states.context_lengths - tails, session.rule.mean_capacities(states.context_lengths) - tails

    def __call__(self, indices: list[int], step: int) -> tuple[Tensor, Terms]:
        """Loss of a batch, for `acct.training.loop.fit`; layers and pairs are drawn from the loop's seeded random state."""
        config = self.session.config.supervision
        generator = torch.Generator().manual_seed(int(torch.randint(1 << 62, ())))
        states, found, prefix, cutoff = self._batch(indices, generator)
        scores = self.scores(states, found.units)
        pairs = sample_pairs(
            found.utilities, prefix, cutoff, generator, pairs=config.pairs, power=config.straddle_power,
            band_minimum=config.band_minimum, band_fraction=config.band_fraction,
        )  # fmt: skip
        loss = scoring_loss(scores, pairs, prefix, config.score_epsilon)
        return loss, {"valid_pairs": float(pairs.valid.float().mean())}

    @torch.no_grad()
    def measure(self, batch: int, seed: int = 0) -> Terms:
        """Over all examples: mean rank correlation, and mean share of the reachable utility that equal-capacity selection keeps."""
        correlations, shares = [], []
        generator = torch.Generator().manual_seed(seed)
        for indices in batches_of(len(self.examples), batch, self.examples.lengths()):
            states, found, prefix, cutoff = self._batch(indices, generator)
            scores = self.scores(states, found.units)
            correlations.append(rank_correlation(scores, found.utilities, prefix))
            shares.append(kept_share(scores, found.utilities, prefix, cutoff))
        return {"rank_correlation": float(torch.cat(correlations).mean()), "kept_utility": float(torch.cat(shares).mean())}


def _prefix_ranks(values: Tensor, prefix: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending ranks of the prefix positions (0 elsewhere) and their mask: [batch, unit, context]."""
    inside = torch.arange(values.shape[-1], device=values.device) < prefix[:, None, None]
    order = values.double().masked_fill(~inside, torch.inf).argsort(dim=-1, stable=True)
    place = torch.arange(values.shape[-1], device=values.device, dtype=torch.float64).expand_as(order)
    ranks = torch.zeros(values.shape, dtype=torch.float64, device=values.device).scatter(-1, order, place)
    return ranks.masked_fill(~inside, 0.0), inside.expand_as(ranks)


def rank_correlation(scores: Tensor, utilities: Tensor, prefix: Tensor) -> Tensor:
    """Spearman's rho of each unit over its prefix: float64 [batch, unit]; 0 where the prefix has fewer than two positions.

    Ties are ranked by position.

    Args:
        scores, utilities: [batch, unit, context]. prefix: int64 [batch], n.
    """
    first, inside = _prefix_ranks(scores, prefix)
    second, _ = _prefix_ranks(utilities, prefix)
    count = inside.sum(-1).double()
    mean = (count - 1) / 2
    first, second = (torch.where(inside, ranks - mean[..., None], 0.0) for ranks in (first, second))
    variance = count * (count.square() - 1) / 12
    return (first * second).sum(-1) / variance.clamp(min=1)


def kept_share(scores: Tensor, utilities: Tensor, prefix: Tensor, cutoff: Tensor) -> Tensor:
    """Utility of the top `cutoff` positions by score over that of the top `cutoff` by utility: float64 [batch, unit], in [0, 1]."""
    inside = torch.arange(scores.shape[-1], device=scores.device) < prefix[:, None, None]
    top = torch.arange(scores.shape[-1], device=scores.device) < cutoff[:, None, None]
    utilities = utilities.double().masked_fill(~inside, 0.0)
    order = scores.masked_fill(~inside, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    kept = (utilities.gather(-1, order) * top).sum(-1)
    best = (utilities.sort(dim=-1, descending=True).values * top).sum(-1)
    return torch.where(best > 0, kept / best.clamp(min=torch.finfo(torch.float64).tiny), torch.ones_like(best))
