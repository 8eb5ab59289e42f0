"""The time left of a suite, by hand."""

from __future__ import annotations

from acct.latency.forecast import Forecast


def test_the_time_left_follows_the_operations_done_so_far() -> None:
    ticks = iter([100.0, 110.0, 130.0, 160.0])
    forecast = Forecast({("growth", 8): 10.0, ("read", 8): 30.0, ("read", 16): 60.0, ("write", 16): 100.0}, lambda: next(ticks))
    assert forecast.after("growth", 8) == "1/4 steps, 0:10 gone, about 3:10 left"  # 190 operations at 1 a second
    assert forecast.after("read", 8) == "2/4 steps, 0:30 gone, about 2:00 left"  # 160 at 40 / 30
    forecast.without(16)
    assert forecast.after("read", 16) == "4/4 steps, 1:00 gone"
