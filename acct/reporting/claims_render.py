"""The claims ledger as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acct.reporting.claims import Entry, counts_line, directions_text, ledger
from acct.reporting.claims_evidence import Evidence, load_evidence
from acct.reporting.claims_measures import ALL, Measured
from acct.reporting.intervals import Bootstrap, Interval
from acct.reporting.tables import DASH
from acct.training.files import write_text

HEADS = (
    "claim", "place", "condition", "figure claimed", "counts as holding when", "figure measured", "n", "verdict",
    "embedded pairs", "n there", "there", "hardware", "note",
)  # fmt: skip
_SHOWN = ("value", "lower", "upper", "unit", "examples", "where", "held", "parts", "clear")
COLUMNS = (
    "key", "claim", "place", "condition", "directions", "claimed", "criterion", *_SHOWN, "verdict",
    *(f"beside_{name}" for name in _SHOWN), "beside_verdict", "hardware", "scale", "note",
)  # fmt: skip


@dataclass(frozen=True)
class LedgerFiles:
    """What `write_claims` made: files, entries and the lines that a command prints."""

    files: tuple[Path, ...]
    entries: tuple[Entry, ...]
    lines: tuple[str, ...]


def figure_text(interval: Interval, unit: str) -> str:
    """ "-3.0 [-5.1, -0.8] points"; two decimals for ratios and perplexity, none for counts."""
    decimals = 2 if unit in ("x", " PPL") else 0 if unit.startswith(" of") else 1
    sign = "+" if unit in (" points", " PPL") else ""
    bounds = ""
    if np.isfinite([interval.lower, interval.upper]).all():
        bounds = f" [{interval.lower:.{decimals}f}, {interval.upper:.{decimals}f}]"
    attached = unit if unit in ("x", "%") else ""
    return f"{interval.value:{sign}.{decimals}f}{attached}{bounds}{unit.removeprefix(attached)}"


def measured_text(measured: Measured | None) -> str:
    """The deciding figure, where it was seen, and how many parts hold; a dash for what was not measured."""
    if measured is None or not measured.complete:
        return DASH
    interval, unit, _ = measured.figure
    text = figure_text(interval, unit)
    if measured.needed != ALL:
        return text + " hold"
    if len(measured.parts) == 1:
        return text
    return f"{text} ({measured.deciding.where}); {measured.held} of {len(measured.parts)} hold"


def examples_text(measured: Measured | None) -> str:
    """n behind the deciding figure."""
    return DASH if measured is None or not measured.complete else str(measured.figure[2])


def cells(entry: Entry) -> tuple[str, ...]:
    """One row under HEADS."""
    claim = entry.claim
    return (
        claim.claim, claim.place, claim.condition, claim.claimed, claim.measure.criterion(), measured_text(entry.measured),
        examples_text(entry.measured), entry.verdict, measured_text(entry.beside), examples_text(entry.beside),
        entry.beside_verdict or DASH, entry.hardware or DASH, entry.note,
    )  # fmt: skip


def preamble(entries: Sequence[Entry], scale: str) -> list[str]:
    """What a reader must know before the table."""
    return [
        f"Scale: {scale}. {counts_line(entries)}",
        "A verdict is about the pairs that the paper names, and about point figures; a note says where an interval reaches over the bound. "
        "Differences are oriented: above zero is better, for perplexity too. The figure shown is that of the comparison furthest from "
        "supporting the claim.",
        '"Embedded pairs" is the same statement about the small models of `acct/micro`, whose tasks only share the names of the real ones: '
        "no evidence about the paper's pairs.",
    ]


def markdown(entries: Sequence[Entry], scale: str, notes: Sequence[str] = ()) -> str:
    """GitHub Markdown: preamble, one table, every part behind the figures, notes."""
    lines = ["# Claims of the paper", "", *(line for text in preamble(entries, scale) for line in (text, ""))]
    lines += map(table_line, (HEADS, ["---"] * len(HEADS), *map(cells, entries)))
    lines += ["", "## Every comparison", ""]
    for entry in entries:
        shown = entry.measured if entry.measured.complete else entry.beside
        if shown is None or not shown.parts:
            continue
        lines += [f"- {entry.claim.claim} (`{entry.claim.key}`; {entry.claim.measure.criterion()})"]
        for part in shown.parts:
            lines.append(f"  - {part.where}: {figure_text(part.interval, part.unit)}, n = {part.examples}: {'yes' if part.holds else 'no'}")
    lines += ["", "## Provenance", "", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines).rstrip() + "\n"


def table_line(texts: Sequence[str]) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _shown(measured: Measured | None) -> dict[str, Any]:
    if measured is None or not measured.complete:
        return dict.fromkeys(_SHOWN)
    interval, unit, examples = measured.figure
    numbers = {name: _number(getattr(interval, name)) for name in ("value", "lower", "upper")}
    where = measured.deciding.where if measured.needed == ALL else None
    return {**numbers, "unit": unit.strip(), "examples": examples, "where": where, "held": measured.held, "parts": len(measured.parts),
            "clear": measured.clear}  # fmt: skip


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None


def as_row(entry: Entry) -> dict[str, Any]:
    """One row under COLUMNS; None for what was not measured."""
    claim = entry.claim
    return {
        "key": claim.key, "claim": claim.claim, "place": claim.place, "condition": claim.condition,
        "directions": directions_text(claim.directions), "claimed": claim.claimed, "criterion": claim.measure.criterion(),
        **_shown(entry.measured), "verdict": entry.verdict,
        **{f"beside_{name}": value for name, value in _shown(entry.beside).items()}, "beside_verdict": entry.beside_verdict or None,
        "hardware": entry.hardware or None, "scale": entry.scale, "note": entry.note or None,
    }  # fmt: skip


def as_csv(entries: Sequence[Entry]) -> str:
    """One line for each claim, columns exactly COLUMNS; empty fields for what was not measured."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(as_row(entry) for entry in entries)
    return buffer.getvalue()


def as_json(entries: Sequence[Entry], scale: str, notes: Sequence[str] = ()) -> str:
    """Every row with the parts behind it, the text of its figures, and the line of counts: all that `claims_excerpt` shows."""

    def parts(measured: Measured | None) -> list[dict[str, Any]]:
        return [
            {"where": part.where, "unit": part.unit.strip(), "examples": part.examples, "holds": part.holds,
             **{name: _number(getattr(part.interval, name)) for name in ("value", "lower", "upper")}}
            for part in (() if measured is None else measured.parts)
        ]  # fmt: skip

    rows = [
        {
            **as_row(e), "text": measured_text(e.measured), "beside_text": measured_text(e.beside), "compared": parts(e.measured),
            "beside_compared": parts(e.beside), "missing": e.measured.missing,
        }
        for e in entries
    ]  # fmt: skip
    content = {"scale": scale, "counts": counts_line(entries), "claims": rows, "provenance": list(notes)}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write_claims(
    results_root: Path | str, scale: str, *, folder: Path | str | None = None, bootstrap: Bootstrap | None = None, margin: float = 0.1,
    evidence: Evidence | None = None,
) -> LedgerFiles:  # fmt: skip
    """Write claims.md, claims.csv and claims.json from what was measured at a scale.

    Args:
        folder: None for <results_root>/<scale>. evidence: None loads it. margin: of the validity verdict in the notes.
    Raises:
        ArtifactError: nothing was measured, or a file that is refused; nothing is written then.
    """
    evidence = evidence or load_evidence(results_root, scale, bootstrap, margin)
    entries, notes = ledger(evidence), evidence.notes()
    folder = Path(folder) if folder is not None else Path(results_root) / scale
    texts = {"claims.md": markdown(entries, scale, notes), "claims.csv": as_csv(entries), "claims.json": as_json(entries, scale, notes)}
    for name, text in texts.items():
        write_text(folder / name, text)
    lines = [
        f"{entry.verdict}: {entry.claim.claim} ({entry.claim.condition}): {measured_text(entry.measured)}"
        for entry in entries if entry.measured.complete
    ] + [f"{entry.beside_verdict} on embedded pairs: {entry.claim.claim}: {measured_text(entry.beside)}"
         for entry in entries if entry.beside is not None and entry.beside.complete]  # fmt: skip
    return LedgerFiles(tuple(folder / name for name in texts), tuple(entries), (*lines, counts_line(entries)))
