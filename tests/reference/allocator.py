"""Capacities by SciPy's root finder and by the concave program; rounding and gates by loops."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit


def capacities_by_root(alpha: np.ndarray, prefix: int, prefix_budget: int) -> np.ndarray:
    """b_p = n sigma(alpha_p - lambda) at the root in lambda."""
    if prefix_budget in (0, len(alpha) * prefix):
        return np.full(len(alpha), float(prefix_budget // max(len(alpha), 1)))
    reach = abs(logit(prefix_budget / (len(alpha) * prefix))) + 1
    gap = lambda shift: (prefix * expit(alpha - shift)).sum() - prefix_budget  # noqa: E731
    return prefix * expit(alpha - brentq(gap, alpha.min() - reach, alpha.max() + reach, xtol=1e-14, rtol=1e-15, maxiter=500))


def capacities_by_program(alpha: np.ndarray, prefix: int, prefix_budget: int) -> np.ndarray:
    """argmax_b sum_p [alpha_p b_p + n H(b_p / n)] subject to sum b = B, by a general constrained optimiser."""

    def loss(b: np.ndarray) -> float:
        z = np.clip(b / prefix, 1e-15, 1 - 1e-15)
        return -float((alpha * b + prefix * (-z * np.log(z) - (1 - z) * np.log1p(-z))).sum())

    def slope(b: np.ndarray) -> np.ndarray:
        z = np.clip(b / prefix, 1e-15, 1 - 1e-15)
        return -(alpha - logit(z))

    start = np.full(len(alpha), prefix_budget / len(alpha))
    equal = {"type": "eq", "fun": lambda b: b.sum() - prefix_budget, "jac": lambda b: np.ones_like(b)}
    found = minimize(
        loss,
        start,
        jac=slope,
        bounds=[(1e-9, prefix - 1e-9)] * len(alpha),
        constraints=[equal],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return found.x


def round_by_loop(capacities: list[float], prefix: int, prefix_budget: int) -> list[int]:
    """One slot at a time to the non-full unit with the largest fraction, the lower unit first."""
    counts = [int(np.floor(b)) for b in capacities]
    fractions = [b - c for b, c in zip(capacities, counts)]
    given: set[int] = set()
    while sum(counts) < prefix_budget:
        open_units = [p for p in range(len(counts)) if counts[p] < prefix and p not in given]
        unit = max(open_units, key=lambda p: (fractions[p], -p))
        counts[unit] += 1
        given.add(unit)
    return counts


def gates_by_root(capacity: float, ranks: np.ndarray, temperature: float) -> np.ndarray:
    """sigma((eta - r) / T_R) at the root in eta, for one unit."""
    if capacity <= 0 or capacity >= len(ranks):
        return np.full(len(ranks), float(capacity > 0))
    reach = temperature * (abs(logit(capacity / len(ranks))) + 1)
    gap = lambda eta: expit((eta - ranks) / temperature).sum() - capacity  # noqa: E731
    return expit((brentq(gap, ranks.min() - reach, ranks.max() + reach, xtol=1e-14, rtol=1e-15, maxiter=500) - ranks) / temperature)
