"""Tables and the ledger as HTML: what beats Target Full is bold and marked, what falls behind is tinted by how far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acct.reporting.claims import FAILS, HOLDS, Entry
from acct.reporting.claims_render import HEADS, cells
from acct.reporting.figures import REFERENCE
from acct.reporting.html_elements import Markup, bullets, grid, tag, worded
from acct.reporting.names import METHODS, METRICS, label
from acct.reporting.summary import Finding
from acct.reporting.tables import DASH, Block, Cell, Table, Text
from acct.reporting.validity import STRICT_CONTROLS

NEAR, HALF = 0.9, 0.5  # shares of Target Full at which the tint changes
CONTROLS = tuple(label(name, METHODS) for name in (*STRICT_CONTROLS, "no_context"))
LEGEND = (
    ("better", "better than Target Full"), ("near", "within 10% of it"), ("low", "50 to 90% of it"), ("far", "under half of it"),
    ("control", "control: low is as it should be"),
)  # fmt: skip
LEDGER_ORDER = (
    "claim", "verdict", "figure claimed", "figure measured", "n", "embedded pairs", "n there", "there", "note", "place", "condition",
    "counts as holding when", "hardware",
)  # fmt: skip
BADGES = {HOLDS: "good", FAILS: "bad"}


def standing(share: float) -> str:
    """The class of a cell from its share of Target Full (inverted for perplexity); empty where it is undefined."""
    if not np.isfinite(share):
        return ""
    if share > 1:
        return "better"
    return "near" if share >= NEAR else "low" if share >= HALF else "far"


def share_of_reference(block: Block, row: str, cell: Cell | Text, column: int) -> float:
    """A cell as a share of the block's Target Full; ratios in percent as they are; NaN where there is nothing to compare with."""
    if isinstance(cell, Text) or not cell.defined:
        return float("nan")
    if row.endswith("Relative (%)") or block.title.startswith("Mean Relative"):
        return cell.interval.value
    reference = dict(block.rows).get(label(REFERENCE, METHODS))
    if reference is None or row == label(REFERENCE, METHODS) or "(%)" in row:
        return float("nan")
    full = reference[column]
    if isinstance(full, Text) or not full.defined:
        return float("nan")
    own, their = cell.interval.value, full.interval.value
    numerator, denominator = (their, own) if block.columns[column].endswith(f"({METRICS['perplexity']})") else (own, their)
    return numerator / denominator if denominator else float("nan")


def cell_html(cell: Cell | Text, kind: str) -> Markup:
    """One cell with its interval below."""
    number = tag("b", cell.number()) if cell.defined and (cell.bold or kind == "better") else tag("span", cell.number())
    bounds = cell.bounds()
    return tag("td", number, tag("small", bounds) if bounds else None, class_=f"number {kind}".strip())


def block_html(block: Block, caption: str) -> Markup:
    """One grid."""
    rows = []
    for name, found in block.rows:
        kinds = ["control" if name in CONTROLS else standing(share_of_reference(block, name, one, n)) for n, one in enumerate(found)]
        rows.append([name, *(cell_html(one, kind) for one, kind in zip(found, kinds))])
    return grid(caption, ["", *block.columns], rows, range(1, len(block.columns) + 1))


def table_html(table: Table) -> Markup:
    """A table: its words, a legend, its grids, its notes and its provenance."""
    legend = tag("ul", *(tag("li", text, class_=kind) for kind, text in LEGEND), class_="legend")
    number = table.name.removeprefix("table")
    grids = [block_html(block, f"Table {number}, {block.title}") for block in table.blocks]
    provenance = tag("p", table.provenance, class_="soft") if table.provenance else None
    return tag("div", tag("p", table.caption), legend, *grids, *notes_html(table.notes), provenance)


def notes_html(notes: Sequence[str], elsewhere: Sequence[str] = ("Summary", "Validity")) -> list[Markup]:
    """Notes of a table under their headings.

    Args:
        notes: lines of Markdown, as tables carry them. elsewhere: headings whose lines have a section of their own on the page.
    """
    under: dict[str, list[str]] = {}
    heading = "Notes"
    for line in filter(None, (note.strip() for note in notes)):
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        else:
            under.setdefault(heading, []).append(line.removeprefix("- "))
    shown = {title: lines for title, lines in under.items() if title not in elsewhere}
    return [part for title, lines in shown.items() for part in (tag("h3", title), bullets(worded(line) for line in lines))]


def badge(text: str, kind: str = "") -> Markup:
    """A word in a coloured pill."""
    return tag("span", text, class_=f"badge {kind}".strip())


def findings_html(found: Sequence[Finding]) -> Markup:
    """The summary of a set of directions, each line with its outcome."""
    rows = []
    for one in found:
        state = badge("not run") if one.holds is None else badge(HOLDS, "good") if one.holds else badge(FAILS, "bad")
        rows.append(tag("li", state, " ", one.line().rpartition(": ")[0] if one.holds is not None else one.text))
    return tag("ul", *rows, class_="plain")


def ledger_html(entries: Sequence[Entry], preamble: Sequence[str]) -> Markup:
    """The ledger; columns without any entry are left out."""
    rows = []
    for entry in entries:
        found = dict(zip(HEADS, cells(entry)))
        rows.append([found[head] for head in LEDGER_ORDER])
    kept = [n for n in range(len(LEDGER_ORDER)) if n == 0 or any(row[n] not in (DASH, "") for row in rows)]
    shown = [[_ledger_cell(LEDGER_ORDER[n], row[n]) for n in kept] for row in rows]
    table = grid("Claims of the paper", [LEDGER_ORDER[n] for n in kept], shown, kind="ledger")
    return tag("div", bullets(map(worded, preamble)), table)


def _ledger_cell(head: str, text: str) -> str:
    if head == "claim":
        return text
    if head in ("verdict", "there") and text != DASH:
        return badge(text, BADGES.get(text, ""))
    return tag("td", text, class_="number" if head in ("n", "n there") else "text")
