"""Intervals against answers worked by hand, a known bootstrap case, and an index-by-index bootstrap."""

from __future__ import annotations

import math

import numpy as np
import pytest

from acct.errors import ConfigError
from acct.reporting.intervals import Bootstrap, Sampled, average, gap_closed, mean, perplexity, ratio_of_sums, relative, weights


def test_worked_values() -> None:
    boot = Bootstrap(100)
    full, method, source = (mean(np.array(v), boot) for v in ([1.0, 1.0, 1.0, 0.0], [1.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]))
    assert (full.value, method.value, source.value) == (0.75, 0.5, 0.25)
    assert relative(method, full).value == pytest.approx(2 / 3)
    assert gap_closed(method, source, full).value == pytest.approx(0.5)


def test_perplexity_is_the_exponential_of_a_ratio_of_sums_not_a_mean_of_perplexities() -> None:
    boot = Bootstrap(100)
    own = perplexity(np.array([2.0, 8.0]), np.array([4.0, 6.0]), boot)
    assert own.value == pytest.approx(math.e)
    assert own.value != pytest.approx((math.exp(0.5) + math.exp(8 / 6)) / 2)
    worse = perplexity(np.array([5.0, 15.0]), np.array([4.0, 6.0]), boot)
    assert relative(worse, own, lower_is_better=True).value == pytest.approx(math.exp(-1))
    assert relative(own, own, lower_is_better=True).interval().lower == 1.0


def test_two_examples_have_three_equally_spaced_draws() -> None:
    """Scores 0 and 1: draws are 0, 1/2 and 1 with probabilities 1/4, 1/2, 1/4; the 95% interval is [0, 1], the 40% one [1/2, 1/2]."""
    sampled = mean(np.array([0.0, 1.0]), Bootstrap(10_000))
    shares = [float((sampled.draws == value).mean()) for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.02)
    wide, narrow = sampled.interval(0.95), sampled.interval(0.4)
    assert (wide.lower, wide.value, wide.upper) == (0.0, 0.5, 1.0)
    assert (narrow.lower, narrow.upper) == (0.5, 0.5)


def test_standard_error_of_a_proportion() -> None:
    scores = np.repeat([0.0, 1.0], [300, 700])
    interval = mean(scores, Bootstrap(10_000)).interval()
    half = 1.96 * math.sqrt(0.7 * 0.3 / 1000)
    assert (interval.lower, interval.upper) == pytest.approx((0.7 - half, 0.7 + half), abs=0.003)


def test_equals_a_bootstrap_by_index() -> None:
    """The same draws, written as indices and averaged one by one."""
    scores, boot = np.random.default_rng(0).random(7), Bootstrap(50, seed=3)
    drawn = weights(7, 50, 3)
    by_hand = [np.repeat(scores, row.astype(int)).mean() for row in drawn]
    np.testing.assert_allclose(mean(scores, boot).draws, by_hand)
    assert (drawn.sum(axis=1) == 7).all()


def test_pairing_narrows_the_difference() -> None:
    rng = np.random.default_rng(1)
    scores = rng.random(200)
    first, second = mean(scores, Bootstrap(2000)), mean(scores - 0.01, Bootstrap(2000))
    paired = (first - second).interval()
    assert paired.lower == pytest.approx(0.01) and paired.upper == pytest.approx(0.01)
    assert first.interval().upper - first.interval().lower > 0.05


def test_seeded_and_reproducible() -> None:
    scores = np.random.default_rng(2).random(30)
    draws = [mean(scores, Bootstrap(100, seed=seed)).draws for seed in (0, 0, 1)]
    assert (draws[0] == draws[1]).all() and not (draws[0] == draws[2]).all()


def test_ratio_to_zero_is_undefined() -> None:
    zero, one = mean(np.zeros(5), Bootstrap(100)), mean(np.ones(5), Bootstrap(100))
    interval = relative(one, zero).interval()
    assert not math.isfinite(interval.value) and math.isnan(interval.lower) and math.isnan(interval.upper)
    assert math.isnan(gap_closed(one, zero, zero).interval().lower)


def test_gap_closed_by_hand_with_its_interval() -> None:
    """Draws [method, source, full]: .5 of the way in two, all of it in two; the percentile interval of {.5, .5, 1, 1} and the value .5."""
    method = Sampled(0.5, np.array([0.5, 0.4, 0.8, 0.9]))
    source, full = Sampled(0.25, np.array([0.25, 0.2, 0.2, 0.3])), Sampled(0.75, np.array([0.75, 0.6, 0.8, 0.9]))
    closed = gap_closed(method, source, full)
    assert closed.value == pytest.approx(0.5) and closed.draws == pytest.approx([0.5, 0.5, 1.0, 1.0])
    interval = closed.interval(0.5)
    assert (interval.lower, interval.upper) == pytest.approx((0.5, 1.0))
    beyond = gap_closed(Sampled(0.85, full.draws), source, full)
    assert beyond.value == pytest.approx(1.2)  # better than the target
    below = gap_closed(Sampled(0.2, full.draws), source, full)
    assert below.value == pytest.approx(-0.1)  # worse than the source alone


def test_there_is_no_gap_where_the_source_is_as_good_as_the_target() -> None:
    """Source 80, target 60, method 50, worse than both: the bare ratio would say 1.5, as if more than all had been closed."""
    draws = np.zeros(4)
    low, middle, high = Sampled(0.5, draws + 0.5), Sampled(0.6, draws + 0.6), Sampled(0.8, draws + 0.8)
    for source, full in ((high, middle), (middle, middle)):
        interval = gap_closed(low, source, full).interval()
        assert math.isnan(interval.value) and math.isnan(interval.lower) and math.isnan(interval.upper)
    # perplexity: a target of 10 is better than a source of 20, and a method of 15 is half way
    ten, fifteen, twenty = Sampled(10.0, draws + 10), Sampled(15.0, draws + 15), Sampled(20.0, draws + 20)
    assert gap_closed(fifteen, twenty, ten, lower_is_better=True).value == pytest.approx(0.5)
    assert math.isnan(gap_closed(fifteen, ten, twenty, lower_is_better=True).value)


def test_draws_without_a_gap_are_left_out_up_to_a_twentieth_of_them() -> None:
    def closed(reversed_draws: int) -> float:
        source = np.where(np.arange(100) < reversed_draws, 0.9, 0.2)
        return gap_closed(Sampled(0.5, np.full(100, 0.5)), Sampled(0.2, source), Sampled(0.8, np.full(100, 0.8))).interval().lower

    assert closed(5) == pytest.approx(0.5)
    assert math.isnan(closed(6))


def test_average_keeps_the_pairing() -> None:
    one, other = Sampled(1.0, np.array([0.0, 2.0])), Sampled(3.0, np.array([4.0, 2.0]))
    both = average([one, other])
    assert both.value == 2.0 and both.draws.tolist() == [2.0, 2.0]


def test_settings_are_checked() -> None:
    for wrong in ({"resamples": 0}, {"confidence": 95.0}, {"confidence": 0.0}):
        with pytest.raises(ConfigError):
            Bootstrap(**wrong)
    with pytest.raises(ConfigError, match="at least one example"):
        ratio_of_sums(np.array([]), np.array([]), Bootstrap(10))


def test_ten_thousand_draws_of_a_thousand_examples_take_seconds_at_most() -> None:
    sampled = mean(np.random.default_rng(0).random(1000), Bootstrap(10_000))
    assert sampled.draws.shape == (10_000,)
