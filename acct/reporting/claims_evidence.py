"""What claims are measured on: sheets of records under several settings, latency records, or the long CSV of a rendered table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from acct.errors import ArtifactError
from acct.reporting.claims_latency import PLACE, LatencyRecord, read_latency
from acct.reporting.figures import Sheet, lower_is_better
from acct.reporting.intervals import Bootstrap, Sampled, relative
from acct.reporting.records import load_records, settings
from acct.reporting.validity import judge
from acct.reporting.write import provenance_line

PAPER = "paper"


@dataclass(frozen=True)
class Row:
    """Which figure: a method of the runs with this retention and variant. A retrained Random is `acct` of the variant "random"."""

    method: str = "acct"
    retention: float = 0.25
    variant: str = ""


@dataclass(frozen=True)
class Observed:
    """A figure with its draws (one NaN draw where only the figure is known).

    Attributes:
        examples: how many were scored. sample: their ids; None where they are not known.
    """

    sampled: Sampled
    metric: str
    examples: int
    sample: frozenset[str] | None = None


class Evidence(ABC):
    """Figures by row, direction and task, and latency records."""

    scale: str
    confidence: float
    latency: tuple[LatencyRecord, ...]

    @abstractmethod
    def observed(self, row: Row, direction: str, task: str) -> Observed | None:
        """The figure, or None where it was not run."""

    @abstractmethod
    def hardware(self, directions: Sequence[str]) -> str:
        """Processors and devices that the records of these directions were made on."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Provenance and validity, one line each."""


class RecordsEvidence(Evidence):
    """Evidence from the run folders of a scale.

    Args:
        sheets: by variant and retention. margin: of the validity verdict.
    """

    def __init__(
        self, scale: str, sheets: dict[tuple[str, float], Sheet], latency: tuple[LatencyRecord, ...] = (), margin: float = 0.1,
        confidence: float = 0.95,
    ):  # fmt: skip
        self.scale, self.sheets, self.latency, self.margin, self.confidence = scale, sheets, latency, margin, confidence

    def observed(self, row: Row, direction: str, task: str) -> Observed | None:
        sheet = self.sheets.get((row.variant, row.retention))
        sampled = None if sheet is None else sheet.sampled(direction, task, row.method)
        if sheet is None or sampled is None:
            return None
        frame = sheet.records.only(direction=direction, task=task, method=row.method)
        sample = frozenset(frame["example"])
        return Observed(sampled, sheet.metric[task], len(sample), sample)

    def hardware(self, directions: Sequence[str]) -> str:
        found = []
        for sheet in self.sheets.values():
            for direction in directions:
                one = sheet.records.provenance.get(direction, {})
                found += [*(one.get("devices") or []), *([one["processor"]] if not one.get("devices") and one.get("processor") else [])]
        return ", ".join(dict.fromkeys(map(str, found)))

    def notes(self) -> list[str]:
        lines = []
        for (variant, retention), sheet in sorted(self.sheets.items()):
            name = f"retention {retention:g}" + (f", {variant}" if variant else "")
            lines.append(f"{name}: {provenance_line(sheet.records)}")
            if not variant:
                lines.append(f"{name}: {judge(sheet, margin=self.margin).lines()[0]}")
        return lines


def load_evidence(results_root: Path | str, scale: str, bootstrap: Bootstrap | None = None, margin: float = 0.1) -> RecordsEvidence:
    """Everything that was measured at a scale: every setting that was evaluated, and latency records where they exist.

    Raises:
        ArtifactError: a folder that `load_records` refuses, a latency file that `read_latency` refuses, or nothing at all.
    """
    root, bootstrap = Path(results_root) / scale, bootstrap or Bootstrap()
    sheets = {
        (variant, retention): Sheet(load_records(results_root, scale, variant, retention), bootstrap)
        for variant, retention in settings(results_root, scale)
    }
    latency = read_latency(root / PLACE)
    if not sheets and not latency:
        raise ArtifactError(
            f"{root} holds neither an evaluated run (shortened ones do not count) nor {PLACE}. Run `acct evaluate scale={scale}` first."
        )
    return RecordsEvidence(scale, sheets, latency, margin, bootstrap.confidence)


def oriented(method: Observed, other: Observed, where: str) -> Sampled:
    """How much better a method is than another, in points or perplexity; draws paired.

    Raises:
        ArtifactError: the two answered different examples.
    """
    _same_sample(method, other, where)
    return other.sampled - method.sampled if lower_is_better(method.metric) else method.sampled - other.sampled


def ratio(method: Observed, other: Observed, where: str) -> Sampled:
    """Ratio of two figures, above 1 where the method is better; draws paired.

    Raises:
        ArtifactError: the two answered different examples.
    """
    _same_sample(method, other, where)
    return relative(method.sampled, other.sampled, lower_is_better(method.metric))


def _same_sample(method: Observed, other: Observed, where: str) -> None:
    if method.sample is not None and other.sample is not None and method.sample != other.sample:
        raise ArtifactError(
            f"mixed configurations: {where} has {len(method.sample)} and {len(other.sample)} examples under two settings, "
            f"{len(method.sample ^ other.sample)} of them not shared. Intervals are paired: evaluate both on the same examples."
        )
