"""What the Cartographer learns from: deletion utility and pairs (spec 5)."""

from __future__ import annotations

from dataclasses import dataclass

from acct.config.fields import check_range, silent


@dataclass
class SupervisionConfig:
    """Deletion utility, its rows, and the pairs drawn from it.

    Attributes:
        layers: most target layers sampled for one example. query_rows, continuation_rows: attention rows taken for one example.
        pairs: pairs for each valid head; half straddle the cutoff, half are local.
    """

    layers: int = 4
    query_rows: int = 8
    continuation_rows: int = 8
    utility_floor: float = silent(1e-4, "1 - a is floored so that a row that attends to one token stays finite", "5")
    utility_epsilon: float = silent(1e-6, "eps_o, a fraction of the mean squared norm of o", "5")
    pairs: int = 32
    straddle_power: float = silent(0.5, "gamma: winners drawn in proportion to u^gamma; the uniform draw loses the token that answers", "5")
    band_minimum: int = silent(16, "least width of the local band", "5")
    band_fraction: float = silent(0.125, "width of the local band as a fraction of n", "5")
    score_epsilon: float = silent(1e-6, "keeps the loss finite when all scores of a unit are equal", "5")

    def __post_init__(self) -> None:
        check_range("supervision.layers", self.layers, 1, float("inf"))
        check_range("supervision.query_rows", self.query_rows, 1, float("inf"))
        check_range("supervision.continuation_rows", self.continuation_rows, 0, float("inf"))
        check_range("supervision.pairs", self.pairs, 4, float("inf"))
        check_range("supervision.utility_floor", self.utility_floor, 0, 1, open_low=True)
        check_range("supervision.straddle_power", self.straddle_power, 0, float("inf"))
