"""Paired bootstrap over examples: figures, Relative and gap closed with 95% intervals (spec 8).

Every figure is a ratio of sums over examples: sum score / number of examples, or exp(sum NLL / sum tokens) for perplexity. One draw
resamples the examples of a task with replacement, and all methods (and all directions with the same examples) see the same draw, so
that differences and ratios are paired. A draw is a row of multinomial weights: all draws of all methods are one matrix product, in
float64. Intervals are percentiles of the draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from acct.errors import ConfigError

Array = NDArray[np.float64]
UNDEFINED_SHARE = 0.05  # an interval is undefined where more than this share of its draws is (a ratio to zero)


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are drawn.

    Attributes:
        resamples: draws [ours: the number]. confidence: covered share. seed: of the draws.
    """

    resamples: int = 10_000
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise ConfigError(f"resamples must be at least 1, got {self.resamples}.")
        if not 0 < self.confidence < 1:
            raise ConfigError(f"confidence must lie in (0, 1), got {self.confidence}: write 0.95 for 95%.")


@dataclass(frozen=True)
class Interval:
    """A figure and its interval; NaN where it is undefined."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Sampled:
    """A figure with its draws, so that ratios and means of figures keep the pairing.

    Attributes:
        value: the figure on the examples themselves. draws: float64 [resample].
    """

    value: float
    draws: Array

    def interval(self, confidence: float = 0.95) -> Interval:
        """Percentile interval of the draws."""
        finite = self.draws[np.isfinite(self.draws)]
        if not np.isfinite(self.value) or len(finite) < (1 - UNDEFINED_SHARE) * len(self.draws):
            return Interval(float(self.value), float("nan"), float("nan"))
        lower, upper = np.quantile(finite, [(1 - confidence) / 2, (1 + confidence) / 2])
        return Interval(float(self.value), float(lower), float(upper))

    def _with(self, other: Sampled, operation) -> Sampled:
        with np.errstate(divide="ignore", invalid="ignore"):
            value = operation(np.float64(self.value), np.float64(other.value))
            return Sampled(float(value), operation(self.draws, other.draws))

    def __truediv__(self, other: Sampled) -> Sampled:
        return self._with(other, np.divide)

    def __sub__(self, other: Sampled) -> Sampled:
        return self._with(other, np.subtract)

    def scaled(self, factor: float) -> Sampled:
        """The figure times a constant."""
        return Sampled(self.value * factor, self.draws * factor)


@lru_cache(maxsize=2)
def weights(examples: int, resamples: int, seed: int) -> Array:
    """How often each draw takes each example: float64 [resample, example], rows summing to `examples`."""
    generator = np.random.default_rng([seed, examples])
    return generator.multinomial(examples, np.full(examples, 1 / examples), size=resamples).astype(np.float64)


def ratio_of_sums(numerators: Array, denominators: Array, bootstrap: Bootstrap, exponential: bool = False) -> Sampled:
    """sum numerators / sum denominators over examples, exponentiated for perplexity.

    Args:
        numerators: float64 [example]: scores, or summed NLL. denominators: float64 [example]: ones, or scored tokens.
    """
    if len(numerators) != len(denominators) or not len(numerators):
        raise ConfigError(f"a figure needs a denominator for each of at least one example, got {len(numerators)} and {len(denominators)}.")
    drawn = weights(len(numerators), bootstrap.resamples, bootstrap.seed) @ np.stack([numerators, denominators], axis=1)  # [resample, 2]
    value, draws = numerators.sum() / denominators.sum(), drawn[:, 0] / drawn[:, 1]
    return Sampled(float(np.exp(value)), np.exp(draws)) if exponential else Sampled(float(value), draws)


def mean(scores: Array, bootstrap: Bootstrap) -> Sampled:
    """Mean score over examples."""
    return ratio_of_sums(scores, np.ones_like(scores), bootstrap)


def perplexity(nll_sums: Array, tokens: Array, bootstrap: Bootstrap) -> Sampled:
    """exp of the mean token NLL over all tokens of all examples: long examples weigh more, as in one long text."""
    return ratio_of_sums(nll_sums, tokens, bootstrap, exponential=True)


def relative(method: Sampled, full: Sampled, lower_is_better: bool = False) -> Sampled:
    """method / Target Full, and Target Full / method for perplexity: above 1 is better than Target Full."""
    return full / method if lower_is_better else method / full


def gap_closed(method: Sampled, source: Sampled, full: Sampled, lower_is_better: bool = False) -> Sampled:
    """(method - Source Full) / (Target Full - Source Full): 0 as good as the source alone, 1 as good as the target (spec 8).

    There is a gap only where Target Full is better than Source Full. Where it is not, the ratio would turn its sign, and a method that
    is worse than both would look as if it had closed something: the figure is NaN then, and so is every draw in which it is so.
    An interval is given where at most UNDEFINED_SHARE of the draws are undefined, and covers the others; it is wide where the two
    hardly differ.

    Args:
        lower_is_better: perplexity, where a better target has the smaller figure.
    """
    width = source - full if lower_is_better else full - source
    ratio = (method - source) / (full - source)
    return Sampled(ratio.value if width.value > 0 else float("nan"), np.where(width.draws > 0, ratio.draws, np.nan))


def average(figures: list[Sampled]) -> Sampled:
    """Mean of several figures with the same draws (a Relative over directions); undefined ones make it undefined."""
    return Sampled(float(np.mean([figure.value for figure in figures])), np.mean([figure.draws for figure in figures], axis=0))
