"""One self-contained page of everything that a scale has measured: `results/<scale>/report.html` (spec 8, 9, 10).

The page asks for nothing outside itself: style, charts and images are inside. It is a pure function of the run folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from acct.reporting.claims import counts_line, ledger
from acct.reporting.claims_evidence import RecordsEvidence, load_evidence
from acct.reporting.claims_render import preamble
from acct.reporting.html_elements import Ids, Markup, tag
from acct.reporting.html_sections import (
    Run,
    capacities_note,
    charts_html,
    latency_html,
    read_runs,
    runs_html,
    settings_html,
    validity_html,
)  # fmt: skip
from acct.reporting.html_style import STYLE
from acct.reporting.html_tables import badge, findings_html, ledger_html, table_html
from acct.reporting.intervals import Bootstrap
from acct.reporting.summary import findings
from acct.reporting.tables import Table
from acct.reporting.validity import judge
from acct.reporting.write import build_table1, other_tables, provenance_line
from acct.training.files import write_text

NAME = "report.html"
TABLES: dict[str, tuple[str, str]] = {
    "table1": ("Table 1: six directions, eleven tasks", "acct reproduce table1 scale={scale}"),
    "table2": ("Table 2: compression", "acct reproduce table2 scale={scale}"),
    "table3": ("Table 3: ablations", "acct reproduce table3 scale={scale}"),
}  # fmt: skip


def missing(what: str, command: str) -> Markup:
    """What the page would show here, and the command that makes it."""
    return tag("p", f"{what} To make it: ", tag("code", command), class_="missing")


def page(
    scale: str, evidence: RecordsEvidence, tables: Sequence[Table], runs: Sequence[Run], charts: Path, retention: float = 0.25,
) -> str:  # fmt: skip
    """The whole document.

    Args:
        tables: those that could be made; the others are named with their command. charts: folder of SVG and PNG files.
        retention: of the runs whose controls are shown.
    """
    sheet = evidence.sheets.get(("", retention))
    entries = ledger(evidence)
    validity = None if sheet is None else judge(sheet, margin=evidence.margin)
    sections: list[tuple[str, Markup]] = []
    by_name = {table.name: table for table in tables}
    if sheet is not None:
        sections.append(("Summary", findings_html(findings(sheet))))
    for name, (title, command) in TABLES.items():
        found = by_name.get(name)
        sections.append((title, table_html(found) if found else missing("No records for this table yet.", command.format(scale=scale))))
    sections.append(("Claims", ledger_html(entries, preamble(entries, scale))))
    capacities = None if sheet is None else capacities_note(sheet)
    drawn = charts_html(charts) or missing("No charts yet.", f"acct figures scale={scale}")
    sections.append(("Charts", tag("div", drawn, capacities)))
    latency = latency_html(evidence.latency) if evidence.latency else tag("p", "No latency records at this scale.", class_="missing")
    sections.append(("Latency", latency))
    command = f"acct evaluate scale={scale}"
    controls = missing("No run to judge.", command) if validity is None else validity_html(validity)
    sections.append(("Controls and validity", controls))
    sections.append(("Runs", runs_html(runs) if runs else missing("No evaluated run.", command)))
    sections.append(("Configuration", settings_html(runs)))
    ids = Ids()
    named = [(ids.new(title), title, body) for title, body in sections]
    state = None if validity is None else badge("valid" if validity.valid else "invalid run", "good" if validity.valid else "bad")
    provenance = "Provenance: latency records only" if sheet is None else provenance_line(sheet.records)
    header = tag(
        "header",
        tag("h1", f"ACCT at scale {scale} ", state),
        tag("p", counts_line(entries)),
        tag("p", provenance, class_="soft"),
        tag("nav", *(tag("a", title, href=f"#{name}") for name, title, _ in named), aria_label="sections"),
    )
    body = tag("main", *(tag("section", tag("h2", title), content, id=name) for name, title, content in named))
    footer = tag("footer", tag("p", "Made by acct report from records; no figure on this page is typed by hand."))
    head = tag(
        "head", tag("meta", charset="utf-8"), tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"ACCT report: {scale}"), tag("style", Markup(STYLE)),
    )  # fmt: skip
    return f"<!doctype html>\n{tag('html', head, tag('body', header, body, footer), lang='en')}\n"


def write_report(
    results_root: Path | str, scale: str, *, retention: float = 0.25, bootstrap: Bootstrap | None = None, margin: float = 0.1,
    path: Path | str | None = None,
) -> Path:  # fmt: skip
    """Write the page of a scale from its run folders, charts and latency records.

    Args:
        retention: of Table 1. margin: of the validity verdict. path: None for <results_root>/<scale>/report.html.
    Raises:
        ArtifactError: nothing was measured, or a folder that is refused; nothing is written then.
    """
    root = Path(results_root) / scale
    evidence = load_evidence(results_root, scale, bootstrap, margin)
    sheet = evidence.sheets.get(("", retention))
    tables: list[Table] = []
    if sheet is not None:
        tables = [build_table1(sheet.records, bootstrap, margin=margin), *other_tables(results_root, scale, retention, "", bootstrap)]
    place = Path(path) if path is not None else root / NAME
    write_text(place, page(scale, evidence, tables, read_runs(root), root / "figures", retention))
    return place
