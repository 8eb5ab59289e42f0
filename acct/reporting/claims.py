"""The ledger of the paper's claims: what is claimed, where, what was measured, and whether it holds (spec 10).

A verdict is given only on the directions that the paper names. At a scale that does not have them a claim is *not comparable*; the same
statement about the corresponding pairs of embedded models is measured beside it, and says nothing about the paper's pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from acct.reporting.claims_evidence import PAPER, Evidence
from acct.reporting.claims_measures import Measure, Measured
from acct.reporting.names import direction_label

HOLDS, FAILS, NOT_RUN, NOT_COMPARABLE = "holds", "does not hold", "not run", "not comparable at this scale"
VERDICTS = (HOLDS, FAILS, NOT_RUN, NOT_COMPARABLE)

EMBEDDED: dict[str, str] = {
    "qwen3_4b_to_8b": "micro_qwen3_small_to_large", "qwen3_8b_to_4b": "micro_qwen3_large_to_small",
    "llama_3b_to_8b": "micro_llama_small_to_large", "llama_8b_to_3b": "micro_llama_large_to_small",
    "qwen25_7b_to_32b": "micro_qwen2_small_to_large", "qwen25_32b_to_7b": "micro_qwen2_large_to_small",
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes:
        key: stable name. claim: in words. place: section, figure or table of the paper. condition: under which it is made.
        claimed: the paper's figure as printed, or its words where its text gives no figure.
        directions: that it is about. measure: how it is measured. counterpart: embedded pair of each direction, where there is one.
    """

    key: str
    claim: str
    place: str
    condition: str
    claimed: str
    directions: tuple[str, ...]
    measure: Measure
    counterpart: Mapping[str, str] = field(default_factory=lambda: EMBEDDED)


@dataclass(frozen=True)
class Entry:
    """A claim with its verdict.

    Attributes:
        measured: on the claim's own directions. beside: the same statement on the corresponding embedded pairs; None where the own
            directions were measured or no pair corresponds.
        hardware: of what was measured.
    """

    claim: Claim
    verdict: str
    measured: Measured
    beside: Measured | None
    hardware: str
    scale: str

    @property
    def beside_verdict(self) -> str:
        """Whether the same statement holds on the embedded pairs; empty where there is nothing beside."""
        if self.beside is None:
            return ""
        return (HOLDS if self.beside.holds else FAILS) if self.beside.complete else NOT_RUN

    @property
    def note(self) -> str:
        """What is missing, and whether an interval leaves the verdict open."""
        shown = self.measured if self.measured.complete else self.beside
        if shown is None:
            return "no embedded pair corresponds" if self.verdict == NOT_COMPARABLE else f"missing: {_listed(self.measured.missing)}"
        if not shown.complete:
            return f"missing: {_listed(shown.missing)}"
        return "" if shown.clear or not _has_interval(shown) else "the interval leaves it open"


def _has_interval(measured: Measured) -> bool:
    interval = measured.figure[0]
    return interval.lower == interval.lower  # NaN differs from itself


def _listed(missing: Sequence[str], most: int = 2) -> str:
    more = f" and {len(missing) - most} more" if len(missing) > most else ""
    return "; ".join(missing[:most]) + more


def judge_claim(claim: Claim, evidence: Evidence) -> Entry:
    """Measure one claim and give its verdict."""
    measured = claim.measure.on(evidence, claim.directions)
    if measured.complete:
        return Entry(claim, HOLDS if measured.holds else FAILS, measured, None, _hardware(evidence, claim.directions), evidence.scale)
    if evidence.scale == PAPER:
        return Entry(claim, NOT_RUN, measured, None, "", evidence.scale)
    pairs = [claim.counterpart[direction] for direction in claim.directions if direction in claim.counterpart]
    beside = claim.measure.on(evidence, pairs, exact=False) if len(pairs) == len(claim.directions) else None
    hardware = _hardware(evidence, pairs) if beside is not None and beside.parts else ""
    return Entry(claim, NOT_COMPARABLE, measured, beside, hardware, evidence.scale)


def ledger(evidence: Evidence, claims: Sequence[Claim] | None = None) -> list[Entry]:
    """Every claim with its verdict, in the order of the table.

    Args:
        claims: None for all of `claims_table.CLAIMS`.
    """
    if claims is None:
        from acct.reporting.claims_table import CLAIMS

        claims = CLAIMS
    return [judge_claim(claim, evidence) for claim in claims]


def counts_line(entries: Sequence[Entry]) -> str:
    """How many claims have which verdict, and how the same statements fare on the embedded pairs."""
    found = Counter(entry.verdict for entry in entries)
    line = f"{len(entries)} claims: " + ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict]) + "."
    beside = Counter(entry.beside_verdict for entry in entries if entry.beside is not None)
    if beside:
        parts = ", ".join(f"{beside[verdict]} {verdict}" for verdict in VERDICTS if beside[verdict])
        line += f" The same statements about the embedded pairs: {parts}."
    return line


def directions_text(directions: Sequence[str]) -> str:
    """Directions as they are written in tables."""
    return ", ".join(direction_label(direction) for direction in directions)


def _hardware(evidence: Evidence, directions: Sequence[str]) -> str:
    timed = [f"{record.device}, {record.dtype}" for record in evidence.latency if record.direction in directions]
    return "; ".join(dict.fromkeys([*([evidence.hardware(directions)] if evidence.hardware(directions) else []), *timed]))
