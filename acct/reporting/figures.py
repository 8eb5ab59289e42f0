"""Figures of records: every (direction, task, method) with its interval, Relative and gap closed (spec 8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from acct.errors import ArtifactError
from acct.reporting.intervals import Bootstrap, Interval, Sampled, average, gap_closed, mean, perplexity, relative
from acct.reporting.names import METHODS, TASKS, in_order
from acct.reporting.records import Records

REFERENCE, FLOOR = "target_full", "source_full"
NOTHING = Interval(float("nan"), float("nan"), float("nan"))


def lower_is_better(metric: str) -> bool:
    """Whether smaller figures are better."""
    return metric == "perplexity"


@dataclass(frozen=True)
class Figure:
    """One cell: F1 and accuracy in percent, perplexity as it is; Relative and gap closed as ratios.

    Attributes:
        relative: NaN where Target Full was not run or is zero. gap: NaN where Source Full was not run or is as good as Target Full.
        examples: how many were scored.
    """

    direction: str
    task: str
    metric: str
    method: str
    figure: Interval
    relative: Interval
    gap: Interval
    examples: int


class Sheet:
    """All figures of a set of records, with their draws kept so that means over directions stay paired.

    Args:
        records: of one setting. bootstrap: how intervals are drawn.
    """

    def __init__(self, records: Records, bootstrap: Bootstrap | None = None):
        self.records, self.bootstrap = records, bootstrap or Bootstrap()
        frame = records.frame
        self.directions = records.directions
        self.tasks = in_order(frame["task"].unique(), TASKS)
        self.methods = in_order(frame["method"].unique(), METHODS)
        first = frame.drop_duplicates("task").set_index("task")
        self.metric = {task: str(first.loc[task, "metric"]) for task in self.tasks}
        self.contextual = {task: bool(first.loc[task, "contextual"]) for task in self.tasks}
        self._sampled: dict[tuple[str, str, str], tuple[Sampled, int]] = {}
        for (direction, task), rows in frame.groupby(["direction", "task"], sort=False):
            self._sample(str(direction), str(task), rows)

    def _sample(self, direction: str, task: str, rows: pd.DataFrame) -> None:
        expected = sorted(rows["example"].unique())
        for method, own in rows.groupby("method", sort=False):
            own = own.set_index("example").reindex(expected)
            absent = int(own["task"].isna().sum())
            if absent:
                raise ArtifactError(
                    f"{method} on {task}, {direction}: {absent} of {len(expected)} examples are missing. Intervals are paired: "
                    "evaluate again, the records there are kept."
                )
            if self.metric[task] == "perplexity":
                nll, tokens = (own[name].to_numpy(np.float64) for name in ("nll_sum", "tokens"))
                sampled = perplexity(nll, tokens, self.bootstrap)
            else:
                sampled = mean(own["score"].to_numpy(np.float64), self.bootstrap).scaled(100.0)
            self._sampled[direction, task, str(method)] = (sampled, len(expected))

    def sampled(self, direction: str, task: str, method: str) -> Sampled | None:
        """The figure with its draws, or None where it was not run."""
        return self._sampled.get((direction, task, method), (None, 0))[0]

    def scores(self, direction: str, task: str, method: str) -> NDArray[np.float64] | None:
        """Scores in [0, 1] in the order of the examples' ids, float64 [example]: the same order for every method; None where not run."""
        if (direction, task, method) not in self._sampled:
            return None
        own = self.records.only(direction=direction, task=task, method=method).sort_values("example")
        return own["score"].to_numpy(np.float64)

    def relative(self, direction: str, task: str, method: str, reference: str = REFERENCE) -> Sampled | None:
        """Ratio to a reference method, above 1 where the method is better; None where either was not run."""
        own, full = self.sampled(direction, task, method), self.sampled(direction, task, reference)
        return None if own is None or full is None else relative(own, full, lower_is_better(self.metric[task]))

    def difference(self, direction: str, task: str, method: str, other: str) -> Sampled | None:
        """How much better a method is than another, in the figure's own unit."""
        own, their = self.sampled(direction, task, method), self.sampled(direction, task, other)
        if own is None or their is None:
            return None
        return their - own if lower_is_better(self.metric[task]) else own - their

    def mean_relative(self, task: str, method: str, reference: str = REFERENCE) -> Sampled | None:
        """Relative averaged over the directions where it is defined; draws paired across directions."""
        found = [self.relative(direction, task, method, reference) for direction in self.directions]
        defined = [one for one in found if one is not None and np.isfinite(one.value)]
        return average(defined) if defined else None

    def interval(self, sampled: Sampled | None) -> Interval:
        """The interval, NaN for None."""
        return NOTHING if sampled is None else sampled.interval(self.bootstrap.confidence)

    def figure(self, direction: str, task: str, method: str) -> Figure | None:
        """One cell, or None where it was not run."""
        if (direction, task, method) not in self._sampled:
            return None
        own, examples = self._sampled[direction, task, method]
        full, floor = (self.sampled(direction, task, name) for name in (REFERENCE, FLOOR))
        gap = None if full is None or floor is None else gap_closed(own, floor, full, lower_is_better(self.metric[task]))
        return Figure(
            direction, task, self.metric[task], method, self.interval(own),
            self.interval(self.relative(direction, task, method)), self.interval(gap), examples,
        )  # fmt: skip

    def all(self) -> list[Figure]:
        """Every cell that was run: by direction, task, method."""
        cells = ((d, t, m) for d in self.directions for t in self.tasks for m in self.methods)
        return [figure for cell in cells if (figure := self.figure(*cell)) is not None]
