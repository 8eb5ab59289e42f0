"""McNemar's exact test on paired right and wrong answers, and Holm's adjustment over a family of tests.

Two methods answer the same examples. With b examples that only the first gets right and c that only the second does, a difference in
accuracy lies in b and c alone; where both are equally good each discordant example falls to either side with probability 1/2:

    p = min(1, 2 P(X <= min(b, c))),   X ~ Binomial(b + c, 1/2)        two sided, exact at every size; 1 where b + c = 0

No normal approximation and no continuity correction: on 50 examples b + c is often below 25, where they are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from acct.errors import ArtifactError, ConfigError


@dataclass(frozen=True)
class Paired:
    """Counts of a paired comparison of two methods on `examples` examples.

    Attributes:
        first_only, second_only: b and c, examples that one of the two gets right and the other does not.
    """

    examples: int
    first_only: int
    second_only: int

    @property
    def p_value(self) -> float:
        """Of McNemar's exact test, two sided."""
        return exact(self.first_only, self.second_only)


def exact(first_only: int, second_only: int) -> float:
    """Two-sided p of b against c discordant examples under Binomial(b + c, 1/2).

    Raises:
        ConfigError: a negative count.
    """
    if min(first_only, second_only) < 0:
        raise ConfigError(f"discordant counts cannot be negative, got b = {first_only} and c = {second_only}.")
    discordant = first_only + second_only
    if not discordant:
        return 1.0
    return min(1.0, 2.0 * float(binom.cdf(min(first_only, second_only), discordant, 0.5)))


def paired(first: NDArray[np.float64], second: NDArray[np.float64]) -> Paired:
    """Count the discordant examples of two methods.

    Args:
        first, second: 0 or 1 [example], the same examples in the same order.
    Raises:
        ArtifactError: different lengths, no example, or a score that is neither 0 nor 1.
    """
    if len(first) != len(second) or not len(first):
        raise ArtifactError(f"McNemar's test needs the same examples for both methods, at least one; got {len(first)} and {len(second)}.")
    for scores in (first, second):
        graded = scores[(scores != 0) & (scores != 1)]
        if len(graded):
            raise ArtifactError(f"McNemar's test needs right or wrong answers (1 or 0), got a score of {graded[0]:g}. Is it an accuracy?")
    return Paired(len(first), int(((first == 1) & (second == 0)).sum()), int(((first == 0) & (second == 1)).sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given: the chance of any false rejection in the family stays below the level.

    The i-th smallest of m values (i from 0) becomes max over j <= i of min(1, (m - j) p_(j)).
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted
