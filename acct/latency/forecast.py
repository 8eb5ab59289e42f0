"""How long a suite still takes: operations counted from shapes, at the rate at which the finished ones were done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from acct.progress import clock_text

Step = tuple[str, int]


class Forecast:
    """Progress over the steps (phase, tokens) of a suite.

    Args:
        operations: of every step, repetitions included. clock: seconds, for tests.
    """

    def __init__(self, operations: Mapping[Step, float], clock: Callable[[], float] = time.monotonic) -> None:
        self.left, self.total, self.clock = dict(operations), len(operations), clock
        self.whole, self.started = sum(operations.values()), clock()

    def after(self, phase: str, tokens: int) -> str:
        """A step has been timed; says how many have, and the time gone and left."""
        self.left.pop((phase, tokens), None)
        gone, left = self.clock() - self.started, sum(self.left.values())
        text = f"{self.total - len(self.left)}/{self.total} steps, {clock_text(gone)} gone"
        return text + (f", about {clock_text(gone * left / (self.whole - left))} left" if 0 < left < self.whole else "")

    def without(self, tokens: int) -> None:
        """A length is left out: its other steps will not come."""
        self.left = {step: operations for step, operations in self.left.items() if step[1] != tokens}
