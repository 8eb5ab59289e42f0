"""The capacity map against SciPy's root and the concave program; its gradient; exact sums after rounding."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acct.allocator.budget import BudgetRule, capacities, round_capacities
from acct.errors import BudgetError, ConfigError
from tests.reference.allocator import capacities_by_program, capacities_by_root, round_by_loop


def test_the_papers_worked_budget() -> None:
    budget = BudgetRule(0.25, 32).resolve(1024)
    counts = round_capacities(
        capacities(torch.randn(288), budget.prefix, budget.prefix_budget(288)), budget.prefix, budget.prefix_budget(288)
    )
    assert int(counts.sum()) + 288 * budget.tail == 73_728 and 288 * 1024 == 294_912


@pytest.mark.parametrize(
    "length,tail,mean", [(0, 0, 0), (1, 1, 1), (31, 31, 31), (32, 32, 32), (33, 32, 32), (129, 32, 33), (1024, 32, 256)]
)
def test_the_rule_at_small_and_large_contexts(length: int, tail: int, mean: int) -> None:
    budget = BudgetRule(0.25, 32).resolve(length)
    assert (budget.tail, budget.mean_capacity, budget.prefix) == (tail, mean, length - tail)
    assert BudgetRule(0.25, 32).mean_capacities(torch.tensor([length, 400])).tolist() == [mean, 100]
    assert BudgetRule(0.25, 32).tails(torch.tensor([length])).tolist() == [tail]


def test_the_kept_fraction_is_rounded_up_exactly() -> None:
    for denominator in range(1, 200):
        for numerator in {1, (denominator + 1) // 2, denominator}:
            rule = BudgetRule(numerator / denominator, 0)
            for length in (denominator, 3 * denominator, 30, 100, 1001):
                assert rule.resolve(length).mean_capacity == math.ceil(Fraction(numerator, denominator) * length)
    assert BudgetRule(0.1, 0).resolve(30).mean_capacity == 3
    assert BudgetRule(0.1234567891, 0).resolve(10**10).mean_capacity == 1234567891


@pytest.mark.parametrize("retention", [0.0, -1.0, 1.01, 4, float("nan"), float("inf")])
def test_retention_outside_its_range_says_what_to_write(retention: float) -> None:
    with pytest.raises(ConfigError, match=r"budget.retention must lie in \(0, 1\], got .*It is the kept fraction: write"):
        BudgetRule(retention)


def test_the_message_for_four_times_compression() -> None:
    with pytest.raises(ConfigError) as caught:
        BudgetRule(4)
    assert str(caught.value) == "budget.retention must lie in (0, 1], got 4. It is the kept fraction: write 0.25 for 4x compression."


SIZES = st.tuples(st.integers(1, 9), st.integers(1, 400), st.floats(0, 1))
PREFERENCES = st.one_of(st.sampled_from([0.0, 50.0, -50.0, 1.0]), st.floats(-50, 50))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(SIZES, st.data())
def test_capacities_equal_the_root_and_sum_exactly_after_rounding(sizes: tuple[int, int, float], data: st.DataObject) -> None:
    units, prefix, share = sizes
    budget = round(share * units * prefix)
    alpha = np.array(data.draw(st.lists(PREFERENCES, min_size=units, max_size=units)))
    got = capacities(torch.tensor(alpha), prefix, budget)
    assert abs(float(got.sum()) - budget) <= 1e-11 * max(budget, 1)
    np.testing.assert_allclose(got.numpy(), capacities_by_root(alpha, prefix, budget), rtol=1e-8, atol=1e-9 * prefix)
    order = np.argsort(alpha, kind="stable")
    assert (np.diff(got.numpy()[order]) >= 0).all()  # monotone in alpha
    counts = round_capacities(got, prefix, budget)
    assert int(counts.sum()) == budget and int(counts.min()) >= 0 and int(counts.max()) <= prefix
    assert counts.tolist() == round_by_loop(got.tolist(), prefix, budget)
    np.testing.assert_allclose(capacities(torch.tensor(alpha + 17.25), prefix, budget).numpy(), got.numpy(), atol=1e-9 * prefix)


def test_capacities_solve_the_concave_program() -> None:
    rng = np.random.default_rng(0)
    for units, prefix, budget in [(3, 20, 31), (5, 7, 12), (4, 90, 200)]:
        alpha = rng.normal(size=units) * 1.5
        got = capacities(torch.tensor(alpha), prefix, budget).numpy()
        np.testing.assert_allclose(got, capacities_by_program(alpha, prefix, budget), atol=2e-3)


def test_raising_one_preference_raises_its_capacity_and_lowers_the_others() -> None:
    alpha = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    change = capacities(alpha + 0.3 * torch.eye(6, dtype=torch.float64)[2], 50, 120) - capacities(alpha, 50, 120)
    assert change[2] > 0 and (change[[0, 1, 3, 4, 5]] < 0).all() and abs(float(change.sum())) < 1e-10


@pytest.mark.parametrize("units,prefix,budget", [(5, 40, 70), (2, 10, 1), (7, 13, 90)])
def test_gradient_equals_differences_and_sums_to_zero(units: int, prefix: int, budget: int) -> None:
    alpha = torch.randn(units, dtype=torch.float64, generator=torch.Generator().manual_seed(units), requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: capacities(a, prefix, budget), (alpha,), eps=1e-5, atol=1e-6)
    upstream = torch.randn(units, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(capacities(alpha, prefix, budget), alpha, upstream)
    assert abs(float(gradient.sum())) < 1e-10
    share = (capacities(alpha, prefix, budget) / prefix).detach()
    weights = prefix * share * (1 - share)
    torch.testing.assert_close(gradient, weights * (upstream - (upstream * weights).sum() / weights.sum()))


@pytest.mark.parametrize("units,prefix,budget", [(3, 8, 0), (3, 8, 24), (3, 0, 0), (1, 8, 8)])
def test_both_boundaries_return_at_once_with_zero_gradient(units: int, prefix: int, budget: int) -> None:
    alpha = torch.tensor([50.0, -50.0, 0.0][:units], requires_grad=True)
    got = capacities(alpha, prefix, budget)
    assert got.tolist() == [float(budget // units)] * units
    (gradient,) = torch.autograd.grad(got.sum(), alpha)
    assert not gradient.any() and gradient.dtype == torch.float32


def test_saturated_preferences_keep_a_finite_gradient() -> None:
    alpha = torch.tensor([900.0, -900.0], dtype=torch.float64, requires_grad=True)
    got = capacities(alpha, 10, 10)
    (gradient,) = torch.autograd.grad(got[0], alpha)
    assert got[0].item() == 10.0 and got[1].item() < 1e-300 and torch.isfinite(gradient).all()


def test_one_unit_takes_the_whole_budget() -> None:
    assert float(capacities(torch.tensor([-50.0]), 9, 4)[0]) == pytest.approx(4.0, abs=1e-12)


def test_equal_preferences_share_a_remainder_from_the_first_unit_on() -> None:
    assert round_capacities(capacities(torch.zeros(4), 9, 14), 9, 14).tolist() == [4, 4, 3, 3]


def test_budgets_that_no_allocation_meets_are_refused() -> None:
    with pytest.raises(BudgetError, match="expected 0 to 24"):
        capacities(torch.zeros(3), 8, 25)
    with pytest.raises(BudgetError, match="expected 0 to 24"):
        round_capacities(torch.zeros(3), 8, -1)
    with pytest.raises(BudgetError, match="sum to"):
        round_capacities(torch.zeros(3), 8, 12)
    with pytest.raises(BudgetError, match="unit 1 is not"):
        capacities(torch.tensor([0.0, float("nan")]), 8, 3)
    with pytest.raises(BudgetError, match="0 or more"):
        BudgetRule().resolve(-1)
