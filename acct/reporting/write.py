"""Records in, tables out: `write_tables(results_root, scale)` is a pure function of what lies in the run folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acct.errors import ArtifactError
from acct.reporting.beyond import VARIANT, beyond_table, nll_gap_table
from acct.reporting.figures import Sheet
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import Records, load_records, settings, unfinished
from acct.reporting.render import rendered
from acct.reporting.retraining import retraining_notes, scored_note
from acct.reporting.seeds import seed_runs, seed_table, seeds_csv, seeds_note
from acct.reporting.significance import compare, significance_csv, significance_table, summary_line
from acct.reporting.summary import Criteria, findings
from acct.reporting.tables import Table, ablation_directions, ablation_table, budget_table, table1
from acct.reporting.validity import judge
from acct.training.files import hash_json, write_text

RETENTIONS = (1.0, 0.5, 0.25)
"""Rows of the paper's Table 2."""
RETRAINED = ("random", "uniform")
"""Variants of the paper's Table 3."""


@dataclass(frozen=True)
class Written:
    """What `write_tables` made: files, Table 1 and its sheet (None where only other tables have runs), and the lines to print."""

    files: tuple[Path, ...]
    table: Table | None
    sheet: Sheet | None
    lines: tuple[str, ...]


def provenance_line(records: Records) -> str:
    """One line that says what a table was computed from; no path, no time: equal records give an equal line."""

    def values(*names: str) -> list[Any]:
        found = []
        for provenance in records.provenance.values():
            value: Any = provenance
            for name in names:
                value = value.get(name) if isinstance(value, dict) else None
            found.append(value)
        return list(dict.fromkeys(found))

    commits = ", ".join(str(commit)[:12] for commit in values("commit"))
    dirty = " (with local changes)" if any(values("dirty")) else ""
    versions = "; ".join(f"{name} {'/'.join(map(str, values('versions', name)))}" for name in ("torch", "transformers"))
    digest = hash_json(records.frame.astype(object).where(records.frame.notna(), None).to_dict("records"))[:16]
    hardware = "/".join(map(str, values("processor")))
    return (
        f"Provenance: commit {commits}{dirty}; {versions}; {hardware}; {len(records.directions)} direction(s), "
        f"{len(records.frame)} records, sha256 {digest}"
    )


def build_table1(records: Records, bootstrap: Bootstrap | None = None, criteria: Criteria | None = None, margin: float = 0.1) -> Table:
    """Table 1 with its summary, validity and provenance as notes."""
    sheet = Sheet(records, bootstrap)
    notes = ["## Summary", "", *(f"- {finding.line()}" for finding in findings(sheet, criteria))]
    notes += ["", "## Validity", "", *(f"- {line.strip()}" for line in judge(sheet, margin=margin).lines())]
    return replace(table1(sheet), notes=tuple(notes), provenance=provenance_line(records))


def write_tables(
    results_root: Path | str,
    scale: str,
    *,
    folder: Path | str | None = None,
    retention: float | None = 0.25,
    variant: str = "",
    seed: int = 0,
    methods: Sequence[str] = ("target_full",),
    bootstrap: Bootstrap | None = None,
    criteria: Criteria | None = None,
    control_margin: float = 0.1,
    figures: bool = False,
) -> Written:
    """Write table1.{md,csv,tex} and table1.json (what it was computed from) from the records of a scale.

    Beside it significance.{md,csv,tex}: ACCT against other rows, example by example. Where runs of several retentions lie there, table2 is
    written too; where retrained variants do, table3; where ACCT+ does, beyond; where text was scored, nll_gap; where several training seeds
    do, seeds.{md,csv,tex}. Runs whose evaluation has not
    ended are named and left out; where only other tables have runs, these are written.

    Args:
        results_root, scale: <results_root>/<scale>/<run>/evaluation is read. folder: None for <results_root>/<scale>/tables.
        retention, variant, seed: which runs; the paper's Table 1 is 4x and no variant. seed: of training. methods: rows that must be there.
        figures: also charts into <results_root>/<scale>/figures; needs matplotlib.
    Raises:
        ArtifactError: a folder that `load_records` refuses; nothing is written then.
    """
    found = settings(results_root, scale, seed)
    records = None
    if retention is None or (variant, retention) in found or variant or not found:
        records = load_records(results_root, scale, variant, retention, methods, seed)
    others = other_tables(results_root, scale, retention, variant, bootstrap, seed)
    table = sheet = None
    texts, lines = {}, [f"{folder.parent.name}: evaluation has not finished; it stays out" for folder in unfinished(results_root, scale)]
    if records is not None:
        table, sheet = build_table1(records, bootstrap, criteria, control_margin), Sheet(records, bootstrap)
        note = seeds_note(results_root, scale, variant, retention, seed)
        table = replace(table, notes=(*table.notes, "", "## Training seeds", "", f"- {note}"))
        runs = {"provenance": table.provenance, "configurations": records.configurations, "runs": records.provenance}
        texts[f"{table.name}.json"] = json.dumps(runs, indent=2, sort_keys=True) + "\n"
        lines = [*(finding.line() for finding in findings(sheet, criteria)), *judge(sheet, margin=control_margin).lines(), *lines]
        comparisons = compare(sheet)
        if comparisons:
            tested = replace(significance_table(sheet, comparisons), provenance=table.provenance)
            texts |= {f"{tested.name}{ending}": text for ending, text in rendered(tested).items()}
            texts[f"{tested.name}.csv"] = significance_csv(comparisons)
            lines.append(summary_line(comparisons))
        lines.append(note)
    for one in ([] if table is None else [table]) + others:
        texts |= {f"{one.name}{ending}": text for ending, text in rendered(one).items()}
    over_seeds = seed_runs(results_root, scale)
    if over_seeds:
        table_over_seeds = seed_table(over_seeds, (bootstrap or Bootstrap()).confidence)
        texts |= {f"{table_over_seeds.name}{ending}": text for ending, text in rendered(table_over_seeds).items()}
        texts[f"{table_over_seeds.name}.csv"] = seeds_csv(over_seeds, (bootstrap or Bootstrap()).confidence)
    folder = Path(folder) if folder is not None else Path(results_root) / scale / "tables"
    files = []
    for name, text in texts.items():
        write_text(folder / name, text)
        files.append(folder / name)
    if figures:
        from acct.reporting.charts.registry import write_charts
        from acct.reporting.charts.sources import Sources

        shares = [float(one["retention"]) for one in records.configurations.values()] if records is not None else []
        share = shares[0] if retention is None else retention
        sources = Sources(Path(results_root), scale, share, variant, bootstrap or Bootstrap())
        files += [path for drawn in write_charts(sources, Path(results_root) / scale / "figures").values() for path in drawn.files]
    return Written(tuple(files), table, sheet, tuple(lines))


def other_tables(
    results_root: Path | str, scale: str, retention: float | None, variant: str, bootstrap: Bootstrap | None, seed: int = 0
) -> list[Table]:
    """Table 2 where several retentions were evaluated, Table 3 where retrained variants were, ACCT+ and NLL gap beside runs without one."""
    if variant:
        return []
    found = settings(results_root, scale, seed)

    def sheet(name: str, share: float | None) -> Sheet:
        return Sheet(load_records(results_root, scale, name, share, seed=seed), bootstrap)

    tables = []
    budgets = sorted({share for name, share in found if not name})
    if len(budgets) > 1:
        sheets = {share: sheet("", share) for share in budgets}
        missing = [f"{1 / share:g}x" for share in RETENTIONS if share not in budgets]
        notes = (f"Not run: {', '.join(missing)}.",) if missing else ()
        line = "; ".join(provenance_line(one.records) for one in sheets.values())
        table = budget_table(sheets, RETENTIONS)
        tables.append(replace(table, notes=(*table.notes, *notes), provenance=line))
    tables += _beyond(found, retention, sheet)
    variants = sorted({name for name, share in found if name not in ("", VARIANT) and share == retention})
    if variants and ("", retention) in found:
        retrained = {name: sheet(name, retention) if name in variants else None for name in dict.fromkeys((*RETRAINED, *variants))}
        base = sheet("", retention)
        directions = ablation_directions(base, retrained)
        notes = (
            "Trained again, and on how much:", "", *retraining_notes(results_root, scale, retention, variants, seed),
            "- Bridge-only, Native KV, Random: nothing.", scored_note(base, retrained, directions),
        )  # fmt: skip
        line = "; ".join(provenance_line(one.records) for one in (base, *retrained.values()) if one is not None)
        tables.append(replace(ablation_table(base, retrained), notes=notes, provenance=line))
    return tables


def _beyond(found: Sequence[tuple[str, float]], retention: float | None, sheet: Callable[[str, float | None], Sheet]) -> list[Table]:
    """ACCT+ beside ACCT, and NLL gap closed, where there are records for them."""
    base = sheet("", retention) if ("", retention) in found else None
    plus = sheet(VARIANT, retention) if (VARIANT, retention) in found else None
    budgets = {f"{1 / share:g}x": sheet(name, share) for name, share in found if name == VARIANT and share != retention}
    tables = [] if plus is None else [beyond_table(base, plus, budgets)]
    named = {"": base, "ACCT+": plus}
    for name, share in found:
        if not name and share != retention:
            named[f"{1 / share:g}x"] = sheet(name, share)
    named |= {f"ACCT+ {name}": one for name, one in budgets.items()}
    sheets = {name: one for name, one in named.items() if one is not None}
    gap = nll_gap_table(sheets)
    line = "; ".join(provenance_line(one.records) for one in sheets.values())
    return [replace(one, provenance=line) for one in [*tables, *([] if gap is None else [gap])]]


def write_appendix(written: Written, appendix: Path | str, name: str) -> list[Path]:
    """Copy the rendered Table 1 into the tracked folder of tables, as <name>.{md,csv,tex}."""
    if written.table is None:
        raise ArtifactError("there is no Table 1 to copy: only runs of other tables were evaluated.")
    appendix = Path(appendix)
    copies = []
    for file in written.files:
        if file.stem != written.table.name or file.suffix not in (".md", ".csv", ".tex"):
            continue
        if not file.is_file():
            raise ArtifactError(f"{file} is gone since it was written. Render the tables again.")
        write_text(appendix / f"{name}{file.suffix}", file.read_text(encoding="utf-8"))
        copies.append(appendix / f"{name}{file.suffix}")
    return copies
