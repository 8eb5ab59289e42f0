"""Whether the controls of a run let its figures mean anything (spec 8).

On a contextual task, states that cannot carry the document (zeros, noise, another document) must be clearly worse than the method. A
control *reaches* the method where the interval of the paired difference method - control touches zero, or where the control's figure
lies within `margin` of the method's, as a fraction of it. One such task makes the run invalid.

A task on which Target Full itself is not clearly above no context cannot tell states with the document from states without it: it is
reported as such and neither supports nor spoils the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acct.errors import ConfigError
from acct.reporting.figures import REFERENCE, Sheet, lower_is_better
from acct.reporting.intervals import Interval
from acct.reporting.names import METHODS, TASKS, label

STRICT_CONTROLS = ("zeros", "noise", "wrong_document")
WITHOUT_ROOM = "no contextual task on which Target Full is clearly above no context"
WITHOUT_METHOD = "ACCT was not scored on a contextual task"


@dataclass(frozen=True)
class Verdict:
    """One control on one contextual task.

    Attributes:
        method_figure, control_figure: in percent. difference: method - control, paired. reached: the control comes near the method.
        informative: Target Full is clearly above no context there (or one of the two was not run).
    """

    direction: str
    task: str
    control: str
    method_figure: float
    control_figure: float
    difference: Interval
    reached: bool
    informative: bool

    def text(self) -> str:
        return (
            f"{self.direction}, {label(self.task, TASKS)}: {label(self.control, METHODS)} {self.control_figure:.1f} against "
            f"{self.method_figure:.1f} (difference {self.difference.value:.1f} [{self.difference.lower:.1f}, {self.difference.upper:.1f}])"
        )


@dataclass(frozen=True)
class Validity:
    """All verdicts of a run, or of several directions."""

    verdicts: tuple[Verdict, ...]
    missing: tuple[str, ...] = ()

    @property
    def failures(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.reached and verdict.informative]

    @property
    def uninformative(self) -> list[str]:
        """Tasks that cannot tell, as "direction: task"."""
        found = [f"{verdict.direction}: {label(verdict.task, TASKS)}" for verdict in self.verdicts if not verdict.informative]
        return list(dict.fromkeys(found))

    @property
    def valid(self) -> bool:
        return not self.failures and not self.missing and any(verdict.informative for verdict in self.verdicts)

    def lines(self) -> list[str]:
        """The verdict for a person: one line when valid, the reasons when not."""
        if self.valid:
            lines = [f"VALID: all controls are clearly worse than ACCT ({sum(v.informative for v in self.verdicts)} comparisons)."]
        else:
            reason = "a control comes near the method; its figures prove nothing." if self.failures else "its controls do not show it."
            lines = [f"INVALID RUN: {reason}"]
            lines += [f"  {verdict.text()}" for verdict in self.failures]
            lines += [f"  {text}" for text in self.missing]
            if not self.failures and not self.missing:
                lines.append(f"  {WITHOUT_ROOM if self.verdicts else WITHOUT_METHOD}.")
        if self.uninformative:
            lines.append("Not judged, Target Full is not clearly above no context: " + "; ".join(self.uninformative) + ".")
        return lines


def judge(sheet: Sheet, method: str = "acct", controls: Sequence[str] = STRICT_CONTROLS, margin: float = 0.1) -> Validity:
    """Compare every control with the method on every contextual task.

    Args:
        margin: a control's figure of at least (1 - margin) x the method's comes near it, whatever the interval.
    """
    if not 0 <= margin < 1:
        raise ConfigError(f"the control margin must lie in [0, 1), got {margin}: it is a fraction of the method's figure.")
    verdicts, missing = [], []
    for direction in sheet.directions:
        for task in (task for task in sheet.tasks if sheet.contextual[task]):
            own = sheet.sampled(direction, task, method)
            if own is None:
                continue
            room = sheet.difference(direction, task, REFERENCE, "no_context")
            informative = room is None or sheet.interval(room).lower > 0
            for control in controls:
                their, difference = sheet.sampled(direction, task, control), sheet.difference(direction, task, method, control)
                if their is None or difference is None:
                    missing.append(f"{direction}, {label(task, TASKS)}: the control {label(control, METHODS)} was not run.")
                    continue
                interval = sheet.interval(difference)
                near = own.value / their.value if lower_is_better(sheet.metric[task]) else their.value / own.value if own.value else 1.0
                reached = not interval.lower > 0 or near >= 1 - margin
                verdicts.append(Verdict(direction, task, control, own.value, their.value, interval, reached, informative))
    return Validity(tuple(verdicts), tuple(missing))
