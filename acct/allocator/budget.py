"""The budget rule, the one-shift capacity map with its implicit gradient, and rounding (spec 3, paper C.1 and C.2).

    t = min(tau, N);  k = min(N, max(t, ceil(rho N)));  n = N - t;  B = P (k - t)
    b_p = n sigma(alpha_p - lambda),  sum_p b_p = B        unique lambda for 0 < B < P n
    dL/dalpha_p = w_p [v_p - sum_j v_j w_j / sum_j w_j],   w_p = n sigma (1 - sigma),  v = dL/db;  zero at both boundaries

Capacities are float64 whatever the dtype of the preferences. rho N is rounded up exactly: rho is read as the fraction that was
meant (0.1 as 1/10, 1/11 as 1/11), not as its nearest binary number, so that ceil(0.1 * 30) is 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from acct.errors import BudgetError, ConfigError


@dataclass(frozen=True)
class Budget:
    """The rule at one context length.

    Attributes:
        context_length: N. tail: t, kept by every unit. mean_capacity: k, mean slots per unit with the tail. All in tokens.
    """

    context_length: int
    tail: int
    mean_capacity: int

    @property
    def prefix(self) -> int:
        """n = N - t, ranked tokens."""
        return self.context_length - self.tail

    def prefix_budget(self, units: int) -> int:
        """B = P (k - t), ranked slots of all units together."""
        return units * (self.mean_capacity - self.tail)


@dataclass(frozen=True)
class BudgetRule:
    """How many slots a context of N tokens may keep.

    Attributes:
        retention: rho, kept fraction in (0, 1]; 1/r at r x compression. tail_tokens: tau >= 0, last tokens that every unit keeps.
    Raises:
        ConfigError: a value outside its range.
    """

    retention: float = 0.25
    tail_tokens: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.retention <= 1:
            times = self.retention if math.isfinite(self.retention) and self.retention > 1 else 4
            raise ConfigError(
                f"budget.retention must lie in (0, 1], got {self.retention}. "
                f"It is the kept fraction: write {1 / times:.4g} for {times:g}x compression."
            )
        if self.tail_tokens < 0 or self.tail_tokens != int(self.tail_tokens):
            raise ConfigError(f"budget.tail_tokens must be a whole number of tokens, 0 or more, got {self.tail_tokens}. Write 32.")

    @cached_property
    def fraction(self) -> Fraction:
        """rho as the fraction that was meant: the simplest one, of denominator up to a million, that reads as the same float."""
        simple = Fraction(self.retention).limit_denominator(10**6)
        return simple if float(simple) == self.retention else Fraction(repr(float(self.retention)))

    def resolve(self, context_length: int) -> Budget:
        """t and k at N = context_length >= 0.

        Raises:
            BudgetError: a negative length.
        """
        if context_length < 0:
            raise BudgetError(f"a context has 0 or more tokens, got {context_length}.")
        tail = min(self.tail_tokens, context_length)
        return Budget(context_length, tail, min(context_length, max(tail, math.ceil(self.fraction * context_length))))

    def tails(self, context_lengths: Tensor) -> Tensor:
        """t of each example: int64 [batch]."""
        return context_lengths.to(torch.int64).clamp(max=self.tail_tokens)

    def mean_capacities(self, context_lengths: Tensor) -> Tensor:
        """k of each example: int64 [batch]."""
        capacities = [self.resolve(length).mean_capacity for length in context_lengths.tolist()]
        return torch.tensor(capacities, dtype=torch.int64, device=context_lengths.device)


def _check(units: int, prefix: int, prefix_budget: int) -> None:
    if not 0 <= prefix_budget <= units * prefix:
        raise BudgetError(
            f"a prefix budget of {prefix_budget} slots does not fit {units} units x {prefix} ranked tokens: "
            f"expected 0 to {units * prefix}. "
            "Take both from BudgetRule.resolve at one context length."
        )


def solve_shift(preferences: Tensor, prefix: int, prefix_budget: int) -> Tensor:
    """lambda with n sum_p sigma(alpha_p - lambda) = B, 0 < B < P n, by bisection until two neighbouring float64 numbers remain.

    The excess over the budget is summed as small terms, what the m = round(B / n) most preferred units lack and what the others
    hold, so that saturated units do not cancel away what decides.
    """
    units = len(preferences)
    offset = math.log(prefix_budget) - math.log(units * prefix - prefix_budget)  # logit of the share
    low, high = preferences.min() - offset, preferences.max() - offset  # excess >= 0 at low and <= 0 at high
    whole = round(Fraction(prefix_budget, prefix))
    part = (prefix_budget - whole * prefix) / prefix
    sign = torch.ones_like(preferences)
    sign[torch.argsort(preferences, descending=True)[:whole]] = -1.0
    for _ in range(2100):  # more halvings than float64 has values between any two finite numbers
        middle = low + (high - low) / 2
        if not low < middle < high:
            break
        above = (sign * torch.sigmoid(sign * (preferences - middle))).sum() > part
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return low + (high - low) / 2


class _Capacities(torch.autograd.Function):
    """b(alpha) with its implicit gradient."""

    @staticmethod
    def forward(ctx, preferences: Tensor, prefix: int, prefix_budget: int) -> Tensor:
        alpha = preferences.detach().to(torch.float64)
        share = torch.sigmoid(alpha - solve_shift(alpha, prefix, prefix_budget))
        ctx.save_for_backward(prefix * share * (1 - share))
        ctx.dtype = preferences.dtype
        return prefix * share

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        total = weights.sum().clamp(min=torch.finfo(torch.float64).tiny)  # all weights underflow: no unit can move, gradient zero
        return (weights * (grad - (grad * weights).sum() / total)).to(ctx.dtype), None, None


def capacities(preferences: Tensor, prefix: int, prefix_budget: int) -> Tensor:
    """Share the prefix budget among the target units (spec 3, paper C.1).

    Args:
        preferences: alpha [unit], learned, any finite value; adding a constant to all of them changes nothing.
        prefix: n, ranked context tokens, the tail not counted.
        prefix_budget: B, slots for all units together, 0 <= B <= P n.
    Returns:
        b, float64 [unit], in [0, n] tokens, summing to B. Its gradient sums to zero over units and is zero at both boundaries.
    Raises:
        BudgetError: B lies outside [0, P n], or a preference is not finite.
    """
    _check(len(preferences), prefix, prefix_budget)
    if not bool(torch.isfinite(preferences).all()):
        raise BudgetError(
            f"preferences must be finite; unit {int((~torch.isfinite(preferences)).nonzero()[0])} is not. Lower the learning rate."
        )
    if prefix_budget in (0, len(preferences) * prefix):
        boundary = torch.full_like(preferences, prefix if prefix_budget else 0, dtype=torch.float64)
        return boundary + (0 * preferences).to(torch.float64)  # stays in the graph: a boundary's gradient is zero, not missing
    return _Capacities.apply(preferences, prefix, prefix_budget)


def round_capacities(capacities: Tensor, prefix: int, prefix_budget: int) -> Tensor:
    """Largest remainder: floor, then one more slot for the non-full units with the largest fractions, ties by lower unit.

    Args:
        capacities: b [unit], summing to B up to float64 rounding.
    Returns:
        int64 [unit], each in [0, n], summing to `prefix_budget` exactly.
    Raises:
        BudgetError: B lies outside [0, P n], or the capacities do not sum to it.
    """
    units = len(capacities)
    _check(units, prefix, prefix_budget)
    exact = capacities.detach().to(torch.float64)
    floors = exact.floor().clamp(0, prefix)
    counts = floors.to(torch.int64)
    left = prefix_budget - int(counts.sum())
    open_units = counts < prefix
    if not 0 <= left <= int(open_units.sum()):
        raise BudgetError(
            f"capacities sum to {float(exact.sum()):.6g}, the prefix budget is {prefix_budget}: "
            "round what `capacities` gave for this budget."
        )
    fractions = (exact - floors).masked_fill(~open_units, -1.0)
    counts[torch.argsort(fractions, descending=True, stable=True)[:left]] += 1
    return counts
