"""The figures by which a set of directions is judged, each with its interval (spec 8, 10).

On open-domain QA (SearchQA, TriviaQA), averaged over directions: ACCT keeps most of Target Full; Random falls far below ACCT;
Bridge-only stays below ACCT; Native KV is near Target Full; every control is near no context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from acct.reporting.figures import Sheet
from acct.reporting.intervals import Interval, Sampled, average
from acct.reporting.names import METHODS, TASKS, label
from acct.reporting.validity import STRICT_CONTROLS

OPEN_QA = ("search_qa", "trivia_qa")


@dataclass(frozen=True)
class Criteria:
    """Bounds of the summary.

    Attributes:
        kept: least mean Relative of ACCT. random: most of ACCT's figure that Random may reach. native_points: most F1 points between
            Native KV and Target Full. control_points: most F1 points of a control above no context.
    """

    kept: float = 0.90
    random: float = 0.50
    native_points: float = 5.0
    control_points: float = 10.0


@dataclass(frozen=True)
class Finding:
    """One line: what, the figure with its interval, the bound, and whether it holds; None where it was not run."""

    text: str
    figure: Interval
    unit: str
    bound: str
    holds: bool | None

    def line(self) -> str:
        if self.holds is None:
            return f"{self.text}: – (not run)"
        figure = self.figure
        scale, decimals = (100.0, 1) if self.unit == "%" else (1.0, 1)
        numbers = f"{figure.value * scale:.{decimals}f}{self.unit}"
        if np.isfinite([figure.lower, figure.upper]).all():
            numbers += f" [{figure.lower * scale:.{decimals}f}, {figure.upper * scale:.{decimals}f}]"
        return f"{self.text}: {numbers} (expected {self.bound}): {'holds' if self.holds else 'DOES NOT HOLD'}"


def findings(sheet: Sheet, criteria: Criteria | None = None, tasks: Sequence[str] = OPEN_QA) -> list[Finding]:
    """The summary of a sheet: for each open-domain QA task, means over directions."""
    bounds = criteria or Criteria()
    found: list[Finding] = []

    def add(text: str, sampled: Sampled | None, unit: str, bound: str, test) -> None:
        interval = sheet.interval(sampled)
        known = sampled is not None and np.isfinite(sampled.value)
        found.append(Finding(text, interval, unit, bound, bool(test(sampled.value)) if known else None))

    for task in (task for task in tasks if task in sheet.tasks):
        name = label(task, TASKS)
        kept = sheet.mean_relative(task, "acct")
        add(f"{name}: ACCT / Target Full", kept, "%", f"at least {100 * bounds.kept:g}%", lambda v: v >= bounds.kept)
        ratio = _mean_ratio(sheet, task, "random", "acct")
        add(f"{name}: Random / ACCT", ratio, "%", f"at most {100 * bounds.random:g}%", lambda v: v <= bounds.random)
        add(f"{name}: ACCT - Bridge-only", _mean_difference(sheet, task, "acct", "bridge_only"), " points", "above 0", lambda v: v > 0)
        native = _mean_difference(sheet, task, "native_kv", "target_full")
        limit = f"within {bounds.native_points:g}"
        add(f"{name}: Native KV - Target Full", native, " points", limit, lambda v: abs(v) <= bounds.native_points)
        limit = f"at most {bounds.control_points:g}"
        for control in STRICT_CONTROLS:
            above = _mean_difference(sheet, task, control, "no_context")
            add(f"{name}: {label(control, METHODS)} - No context", above, " points", limit, lambda v: v <= bounds.control_points)
    return found


def _mean_difference(sheet: Sheet, task: str, method: str, other: str) -> Sampled | None:
    differences = [one for d in sheet.directions if (one := sheet.difference(d, task, method, other)) is not None]
    return average(differences) if differences else None


def _mean_ratio(sheet: Sheet, task: str, method: str, other: str) -> Sampled | None:
    """Ratio of the means over directions: one direction with a small denominator does not decide."""
    both = [d for d in sheet.directions if sheet.sampled(d, task, method) is not None and sheet.sampled(d, task, other) is not None]
    if not both:
        return None
    parts = [average([sheet.sampled(d, task, name) for d in both]) for name in (method, other)]  # type: ignore[misc]
    return parts[0] / parts[1]
