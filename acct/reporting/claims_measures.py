"""Measuring functions of the claims ledger: what is looked at, and the bound under which a claim counts as holding (spec 10).

Each measure yields *parts*, one for each direction and task (or direction and length). A claim about "all" holds where every part does;
"most" asks for more than half of them, "several" for `SEVERAL`. Verdicts are about point figures, as the paper's sentences are; a part
is *clear* where the whole interval lies on its side of the bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import ge, gt, le, lt

import numpy as np

from acct.errors import ConfigError
from acct.reporting.claims_evidence import Evidence, Observed, Row, oriented, ratio
from acct.reporting.claims_latency import LatencyRecord
from acct.reporting.figures import lower_is_better
from acct.reporting.intervals import Interval, Sampled
from acct.reporting.names import METHODS, PAPER_TASKS, TASKS, direction_label, label

ALL, MOST, SOME = "all", "most", "several"
SEVERAL = 3
NEAR = 1.5  # a sample counts as "about n tokens" between n / NEAR and n x NEAR
_SENSES = {"above": gt, "at least": ge, "at most": le, "below": lt}


@dataclass(frozen=True)
class Bound:
    """When a figure supports the claim: "above", "at least", "at most" or "below" a value in the figure's own unit."""

    sense: str
    value: float

    def __post_init__(self) -> None:
        if self.sense not in _SENSES:
            raise ConfigError(f"the sense of a bound must be one of {', '.join(_SENSES)}, got {self.sense!r}.")

    def met(self, figure: float | np.ndarray) -> bool | np.ndarray:
        """Whether the figure is on the claim's side; elementwise for draws."""
        return _SENSES[self.sense](figure, self.value)

    def distance(self, figure: float) -> float:
        """How far on the claim's side the figure lies; negative on the other one."""
        return figure - self.value if self.sense in ("above", "at least") else self.value - figure


@dataclass(frozen=True)
class Part:
    """One comparison.

    Attributes:
        sampled: the figure with its draws. unit: " points", " PPL", "%" or "x". examples: scored examples; 1 for a latency sample.
    """

    where: str
    sampled: Sampled
    bound: Bound
    unit: str
    examples: int
    confidence: float = 0.95

    @property
    def interval(self) -> Interval:
        return self.sampled.interval(self.confidence)

    @property
    def holds(self) -> bool:
        return bool(self.bound.met(self.sampled.value))

    @property
    def clear(self) -> bool:
        lower, upper = self.bound.met(self.interval.lower), self.bound.met(self.interval.upper)
        return bool(np.isfinite([self.interval.lower, self.interval.upper]).all() and lower == upper == self.holds)


@dataclass(frozen=True)
class Measured:
    """All parts of a claim on a set of directions.

    Attributes:
        missing: what was not run; a claim with missing parts is not judged. needed: ALL, MOST or SOME.
    """

    parts: tuple[Part, ...]
    missing: tuple[str, ...]
    needed: str

    @property
    def complete(self) -> bool:
        return bool(self.parts) and not self.missing

    @property
    def held(self) -> int:
        return sum(part.holds for part in self.parts)

    @property
    def quota(self) -> int:
        """Parts that must hold."""
        return {ALL: len(self.parts), MOST: len(self.parts) // 2 + 1, SOME: SEVERAL}[self.needed]

    @property
    def holds(self) -> bool:
        return self.complete and self.held >= self.quota

    @property
    def deciding(self) -> Part:
        """The part that is furthest on the wrong side of its bound, or nearest to it."""
        return min(self.parts, key=lambda part: part.bound.distance(part.sampled.value))

    @property
    def figure(self) -> tuple[Interval, str, int]:
        """Figure, unit and examples: of the deciding part for ALL, otherwise how many parts hold, with the interval of that count."""
        if self.needed == ALL:
            return self.deciding.interval, self.deciding.unit, self.deciding.examples
        draws = [np.where(np.isfinite(part.sampled.draws), part.bound.met(part.sampled.draws), np.nan) for part in self.parts]
        count = Sampled(float(self.held), np.sum(draws, axis=0))
        return count.interval(self.parts[0].confidence), f" of {len(self.parts)}", sum(part.examples for part in self.parts)

    @property
    def clear(self) -> bool:
        """Whether the interval supports the verdict as the figure does."""
        if self.needed == ALL:
            return all(p.clear for p in self.parts) if self.holds else any(p.clear and not p.holds for p in self.parts)
        lower, upper = self.figure[0].lower, self.figure[0].upper
        return bool(lower >= self.quota if self.holds else upper < self.quota)


@dataclass(frozen=True)
class Measure(ABC):
    """What a claim asks for. `needed` says how many of its parts must hold."""

    needed: str = field(default=ALL, kw_only=True)

    @abstractmethod
    def observe(self, evidence: Evidence, direction: str, exact: bool) -> list[Part | str]:
        """Parts of one direction; a text for what was not run. exact: lengths must be near the paper's."""

    @abstractmethod
    def criterion(self) -> str:
        """The bound in words."""

    def on(self, evidence: Evidence, directions: Sequence[str], exact: bool = True) -> Measured:
        """Measure on several directions."""
        found = [one for direction in directions for one in self.observe(evidence, direction, exact)]
        parts = tuple(one for one in found if isinstance(one, Part))
        return Measured(parts, tuple(one for one in found if isinstance(one, str)), self.needed)

    def _many(self, text: str, tasks: Sequence[str]) -> str:
        quota = {ALL: "", MOST: " on more than half of the tasks", SOME: f" on at least {SEVERAL} tasks"}[self.needed]
        names = f" ({', '.join(label(task, TASKS) for task in tasks)})" if len(tasks) < len(PAPER_TASKS) else " (every task)"
        return text + quota + names


def _row_name(row: Row) -> str:
    if row.variant:
        return f"{row.variant.capitalize()}, retrained"
    name = label(row.method, METHODS)
    return f"{name} {1 / row.retention:g}x" if row.method == "acct" else name


@dataclass(frozen=True)
class Compared(Measure):
    """A method against another: the oriented difference must be above zero, or the ratio within `bound` (a fraction)."""

    method: Row
    other: Row
    tasks: tuple[str, ...]
    bound: Bound | None = None

    def criterion(self) -> str:
        names = f"{_row_name(self.method)} {'-' if self.bound is None else '/'} {_row_name(self.other)}"
        limit = "above 0" if self.bound is None else f"{self.bound.sense} {100 * self.bound.value:g}%"
        return self._many(f"{names} {limit}", self.tasks)

    def observe(self, evidence: Evidence, direction: str, exact: bool) -> list[Part | str]:
        found: list[Part | str] = []
        for task in self.tasks:
            where = f"{direction_label(direction)}, {label(task, TASKS)}"
            pair = [evidence.observed(row, direction, task) for row in (self.method, self.other)]
            absent = [_row_name(row) for row, one in zip((self.method, self.other), pair) if one is None]
            if absent:
                found.append(f"{where}: {' and '.join(absent)}")
                continue
            own, their = (one for one in pair if one is not None)
            found.append(self._part(own, their, where, evidence.confidence))
        return found

    def _part(self, own: Observed, their: Observed, where: str, confidence: float) -> Part | str:
        if self.bound is None:
            unit = " PPL" if lower_is_better(own.metric) else " points"
            return Part(where, oriented(own, their, where), Bound("above", 0.0), unit, own.examples, confidence)
        share = ratio(own, their, where).scaled(100.0)
        if not np.isfinite(share.value):
            return f"{where}: the ratio is undefined, {_row_name(self.other)} is {their.sampled.value:g}"
        return Part(where, share, Bound(self.bound.sense, 100 * self.bound.value), "%", own.examples, confidence)


@dataclass(frozen=True)
class Level(Measure):
    """A method's own figure against a bound, in percent."""

    method: Row
    tasks: tuple[str, ...]
    bound: Bound

    def criterion(self) -> str:
        return self._many(f"{_row_name(self.method)} {self.bound.sense} {self.bound.value:g}%", self.tasks)

    def observe(self, evidence: Evidence, direction: str, exact: bool) -> list[Part | str]:
        found: list[Part | str] = []
        for task in self.tasks:
            where = f"{direction_label(direction)}, {label(task, TASKS)}"
            own = evidence.observed(self.method, direction, task)
            if own is None:
                found.append(f"{where}: {_row_name(self.method)}")
            else:
                found.append(Part(where, own.sampled, self.bound, "%", own.examples, evidence.confidence))
        return found


QUANTITIES: dict[str, tuple[str, str]] = {
    "speedup": ("target prefill / conversion", "x"),
    "share": ("conversion / target prefill", "%"),
    "cold_speedup": ("target prefill / construction with source prefill", "x"),
    "source_over_target": ("source prefill / target prefill", "x"),
}


@dataclass(frozen=True)
class Timing(Measure):
    """A latency ratio against a bound ("%" bounds in percent).

    Attributes:
        quantity: of QUANTITIES. at: "shortest", "longest" or "every" sample. tokens: about how many the shortest or longest has
            in the paper; for "every", the least that counts.
    """

    quantity: str
    bound: Bound
    at: str = "every"
    tokens: int = 0

    def criterion(self) -> str:
        text, unit = QUANTITIES[self.quantity]
        length = "" if self.at == "every" and not self.tokens else f"from {self.tokens}" if self.at == "every" else f"about {self.tokens}"
        lengths = "at every length" if not length else f"at {self.at} length {length} tokens"
        return f"{text} {self.bound.sense} {self.bound.value:g}{unit} {lengths}"

    def observe(self, evidence: Evidence, direction: str, exact: bool) -> list[Part | str]:
        records = [record for record in evidence.latency if record.direction == direction]
        chosen = self._choose(records, exact)
        if not chosen:
            wanted = "latency records" if not records else f"a latency sample of about {self.tokens} tokens"
            return [f"{direction_label(direction)}: {wanted}"]
        found: list[Part | str] = []
        unit = QUANTITIES[self.quantity][1]
        for record in chosen:
            where = f"{direction_label(direction)}, {record.context_tokens} tokens"
            value = 1 / record.share if self.quantity == "speedup" else getattr(record, self.quantity)
            if value is None:
                found.append(f"{where}: the stage source_prefill")
                continue
            found.append(Part(where, Sampled(value * (100 if unit == "%" else 1), np.array([np.nan])), self.bound, unit, 1))
        return found

    def _choose(self, records: list[LatencyRecord], exact: bool) -> list[LatencyRecord]:
        """The samples that count; where lengths need not be the paper's, "from n tokens" means the longer half."""
        ordered = sorted(records, key=lambda record: record.context_tokens)
        if not ordered:
            return []
        if self.at == "every":
            return [r for r in ordered if r.context_tokens >= self.tokens] if exact or not self.tokens else ordered[len(ordered) // 2 :]
        one = ordered[0] if self.at == "shortest" else ordered[-1]
        return [one] if not exact or self.tokens / NEAR <= one.context_tokens <= self.tokens * NEAR else []
