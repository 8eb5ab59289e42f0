"""What an evaluation prints: figures, validity, seconds, memory, mounted bytes (spec 8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from acct.interface_check import InterfaceReport
from acct.progress import clock_text
from acct.reporting.figures import Sheet, lower_is_better
from acct.reporting.names import METHODS, METRICS, TASKS, label
from acct.reporting.tables import DASH
from acct.reporting.validity import Validity


@dataclass(frozen=True)
class EvaluationReport:
    """Outcome of one direction.

    Attributes:
        seconds: of each phase, in this process. peak_bytes: largest resident size. bytes_ratio: measured mounted bytes over
            2 P k d bytes per number, None where nothing was mounted. new, kept: records computed now, and found from an earlier run.
    """

    direction: str
    folder: Path
    sheet: Sheet
    validity: Validity
    check: InterfaceReport
    seconds: dict[str, float]
    peak_bytes: int
    bytes_ratio: float | None
    new: int
    kept: int

    def lines(self) -> list[str]:
        """The report for a person."""
        lines = [f"{self.direction}: {self.new} new records, {self.kept} kept, in {self.folder}", *self.grid(), *self.validity.lines()]
        lines.append(
            f"interface check passed: NLL apart by at most {self.check.nll_difference:.2g}, logits by {self.check.logit_difference:.2g}"
        )
        if self.bytes_ratio is not None:
            lines.append(f"mounted context: {self.bytes_ratio:.3f} x 2 P k d bytes per number (limit 1.05)")
        total = sum(self.seconds.values())
        parts = sorted(self.seconds.items(), key=lambda item: -item[1])
        lines.append(f"time {clock_text(total)}: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts))
        lines.append(f"peak memory {self.peak_bytes / 2**30:.2f} GiB")
        return lines

    def grid(self) -> list[str]:
        """One line for each task, one column for each method; F1 and accuracy in percent."""
        heads = [label(method, METHODS) for method in self.sheet.methods]
        width = max(14, *(len(label(task, TASKS)) + 6 for task in self.sheet.tasks))
        lines = [" " * width + "  ".join(heads)]
        for task in self.sheet.tasks:
            metric = self.sheet.metric[task]
            cells = []
            for method, head in zip(self.sheet.methods, heads):
                own = self.sheet.sampled(self.direction, task, method)
                text = DASH if own is None else f"{own.value:.{2 if lower_is_better(metric) else 1}f}"
                cells.append(f"{text:>{len(head)}}")
            lines.append(f"{label(task, TASKS) + ' ' + METRICS[metric]:<{width}}" + "  ".join(cells))
        return lines
