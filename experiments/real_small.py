"""Copy what the real pair gave into experiments/real_small: python experiments/real_small.py [results/real-small]

    python experiments/real_small.py --restore [results/real-small]

puts the published runs into the results first, where they are not there: their answers, Cartographers and Allocators. Directions, tasks and
rows are then added on another machine, and nothing that is published is answered or trained again. A Compiler is too large to be published.

Copying needs `make reproduce-table1 SCALE=real-small ...`, or the evaluated runs that there are so far, then `acct tables` and
`acct figures`. The outcome of the README are the rendered tables and what each run cost; beside it lie every table as CSV, the figures, the
summary of every run (runs/<run>.json: configuration, hashes of models and data, hardware, seconds) and what is restored (published/<run>).
The README of the repository gets the rows of ACCT and its controls.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml
from collect import copy_runs, filled, training_table

from acct.reporting import claims_excerpt
from acct.reporting.beyond import plus_label
from acct.reporting.claims_render import table_line
from acct.reporting.names import METHODS, METRICS, TASKS, direction_label, label
from acct.reporting.records import read_records
from acct.reporting.tables import DASH

FOLDER = Path(__file__).resolve().parent / "real_small"
TABLES = ("beyond", "nll_gap", "table2", "table1", "significance")
SHOWN = ("beyond", "nll_gap", "table2")
LARGEST = 8_000_000
"""Bytes of all published runs together: more belongs elsewhere than in a repository."""
WEIGHTS = 1_880_000
"""Bytes of all published weights together: with the embedded models the repository holds less than 20 MB of weights."""
PUBLISHED = (
    "config.yaml", "provenance.json", "cards/*.json", "cartographer/*.*", "allocator/*.*",
    "evaluation/records.parquet", "evaluation/configuration.json", "evaluation/provenance.json",
)  # fmt: skip
"""Files of a run folder that are published: everything but states, the Compiler and what can be had from these."""
SMALL_STAGES, LARGE_STAGES = ("cartographer", "allocator"), ("selections", "compiler")
"""Stages of which the card alone is published."""

MARKERS = ("<!-- real:begin -->\n", "<!-- real:end -->")
FRONT = ("target_full", "source_full", "no_context", "native_kv", "random", "acct", "bridge_only", "wrong_document")
PLUS = ("native_kv_plus", "random_plus", "acct_plus", "bridge_only_plus", "wrong_document_plus")
PLUS_LABELS = {f"{name}_plus": plus_label(name) for name in ("native_kv", "random", "bridge_only", "wrong_document")}
PLUS_LABELS["acct_plus"] = "**ACCT+**"


def front_table(figures: Path) -> str:
    """Figure, interval and sample size of ACCT, ACCT+ and their controls by direction, from beyond.csv; a dash for what was not run."""
    with figures.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    found = {(row["direction"], row["task"], row["method"]): row for row in rows}
    parts = []
    for direction in dict.fromkeys(row["direction"] for row in rows):
        tasks = [task for task in TASKS if (direction, task, "target_full") in found]
        full = {task: found[direction, task, "target_full"] for task in tasks}
        heads = [f"{label(task, TASKS)} ({METRICS[full[task]['metric']]}, n {full[task]['examples']})" for task in tasks]
        parts += [f"{direction_label(direction)}:", "", table_line(["", *heads]), table_line(["---", *["---:"] * len(heads)])]
        for method in (*FRONT, *PLUS):
            cells = [_cell(found.get((direction, task, method))) for task in tasks]
            if any(cell != DASH for cell in cells):
                parts.append(table_line([PLUS_LABELS.get(method) or label(method, METHODS), *cells]))
        parts.append("")
    return "\n".join(parts)


def _cell(row: dict[str, str] | None) -> str:
    if row is None or not row["value"]:
        return DASH
    decimals = 2 if row["metric"] == "perplexity" else 1
    value, lower, upper = (f"{float(row[name]):.{decimals}f}" if row[name] else DASH for name in ("value", "lower", "upper"))
    return f"{value} [{lower}, {upper}]"


def hours_table(results: Path) -> str:
    """Hours of training and of evaluation of every run, peak memory, threads and hardware, from provenance."""
    lines = ["| run | training (h) | evaluation (h) | answers | peak memory (GiB) | threads |", "|---|---:|---:|---:|---:|---:|"]
    machines = set()
    for run in sorted(path.parent.parent for path in results.glob("*/evaluation/records.parquet")):
        found = [
            json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            for path in (run / "provenance.json", run / "evaluation" / "provenance.json")
        ]
        hours = [sum(one.get("phases_seconds", one.get("seconds", {})).values()) / 3600 for one in found]
        peak = max(one.get("peak_memory_bytes", 0) for one in found) / 2**30
        answers = len(read_records(run / "evaluation").frame)
        lines.append(f"| {run.name} | {hours[0]:.2f} | {hours[1]:.2f} | {answers:,} | {peak:.1f} | {found[-1].get('threads', '–')} |")
        machines |= {f"{one['processor']}, {one['cores']} cores" for one in found if one}
    return "\n".join([*lines, "", f"Hardware: {'; '.join(sorted(machines))}.", ""])


def without_places(value: Any) -> Any:
    """A summary in which an absolute path is its last part: where models and data lay on one machine means nothing on another."""
    if isinstance(value, dict):
        return {name: without_places(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_places(one) for one in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def copy_summaries(results: Path, folder: Path) -> list[str]:
    """`collect.copy_runs` without the places of this machine."""
    missing = copy_runs(results, folder)
    for file in folder.glob("*.json"):
        summary = without_places(json.loads(file.read_text(encoding="utf-8")))
        file.write_text(json.dumps(summary, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return missing


def publish(results: Path, folder: Path) -> list[str]:
    """Every run's answers, cards and small weights, in place of what was published; what may not be, in words."""
    runs = sorted(path.parent.parent for path in results.glob("*/evaluation/records.parquet"))
    gone = [old.name for old in sorted(folder.glob("*")) if old.name not in {run.name for run in runs}]
    if gone:
        return [f"{', '.join(gone)}: published, and not in {results}. Take it in first (--restore), or remove it from {folder}."]
    whole = _whole_stages(runs)
    found = {run.name: [path for pattern in PUBLISHED for path in sorted(run.glob(pattern))] for run in runs}
    files = {name: [path for path in own if path.parent.name not in SMALL_STAGES or path.parent in whole] for name, own in found.items()}
    size = sum(path.stat().st_size for own in files.values() for path in own)
    if size > LARGEST:
        return [f"what would be published is {size:,} bytes, more than {LARGEST:,}: not copied."]
    shutil.rmtree(folder, ignore_errors=True)
    for run in runs:
        for path in files[run.name]:
            copy = folder / run.name / path.relative_to(run)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.name == "config.yaml":
                settings = without_places(yaml.safe_load(path.read_text(encoding="utf-8")))
                copy.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
            else:
                shutil.copyfile(path, copy)
        for stage in (*SMALL_STAGES, *LARGE_STAGES):  # a card where its stage's weights are missing would be a damaged stage
            if (run / stage / "card.json").is_file() and run / stage not in whole:
                copy = folder / run.name / "cards" / f"{stage}.json"
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run / stage / "card.json", copy)
    return []


def _whole_stages(runs: list[Path]) -> set[Path]:
    """Stage folders that are published with their weights, in the order of the runs as far as `WEIGHTS` reaches; of others the card is."""
    left, found = WEIGHTS, set()
    for stage in (run / name for run in runs for name in SMALL_STAGES if (run / name / "card.json").is_file() and not copied(run / name)):
        size = sum(path.stat().st_size for path in stage.glob("*.safetensors"))
        if size <= left:
            left, found = left - size, found | {stage}
    return found


def copied(stage: Path) -> bool:
    """Whether a stage was taken over from another run, with which it is published."""
    card = stage / "card.json"
    return stage.name in SMALL_STAGES and card.is_file() and "copied_from" in json.loads(card.read_text(encoding="utf-8"))


def restore(folder: Path, results: Path) -> list[str]:
    """Put published runs into the results where there is no run of that name; returns the names of those that were put there."""
    found = [run for run in sorted(folder.glob("*")) if not (results / run.name).exists()]
    for run in found:
        shutil.copytree(run, results / run.name)
    return [run.name for run in found]


def main(arguments: list[str]) -> int:
    restoring = arguments[:1] == ["--restore"]
    places = arguments[1:] if restoring else arguments
    results = Path(places[0]) if places else FOLDER.parents[1] / "results/real-small"
    if restoring:
        names = restore(FOLDER / "published", results)
        print(f"put into {results}: {', '.join(names) or 'nothing, all of it is there'}", file=sys.stderr)
        return 0
    tables, figures = results / "tables", sorted((results / "figures").glob("*.png"))
    if not (tables / "table2.md").is_file():  # a curve of one retention
        figures = [file for file in figures if file.stem != "budget_curve"]
    missing = [f"{tables / name}.md is not there: acct tables." for name in SHOWN if not (tables / f"{name}.md").is_file()]
    parts = [path.read_text(encoding="utf-8") for name in SHOWN if (path := tables / f"{name}.md").is_file()]
    if not parts:
        print(f"{results} holds no table: make reproduce-table1 SCALE=real-small, or acct tables scale=real-small.", file=sys.stderr)
        return 2
    runs = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*/provenance.json"))}
    parts += ["# What it cost\n\n" + hours_table(results) + "\n" + training_table(runs)]
    parts += ["# Figures\n\n" + "\n\n".join(f"![{file.stem}]({file.name})" for file in figures) + "\n"] if figures else []
    readme = FOLDER / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8"), "\n".join(parts)), encoding="utf-8")
    for old in (*FOLDER.glob("*.png"), *FOLDER.glob("*.csv")):
        old.unlink()
    for file in (*figures, *(path for name in TABLES if (path := tables / f"{name}.csv").is_file())):
        shutil.copyfile(file, FOLDER / file.name)
    if (tables / "beyond.csv").is_file():
        document = FOLDER.parents[1] / "README.md"
        text = claims_excerpt.filled(document.read_text(encoding="utf-8"), front_table(tables / "beyond.csv"), MARKERS)
        document.write_text(text, encoding="utf-8")
    missing += copy_summaries(results, FOLDER / "runs") + publish(results, FOLDER / "published")
    print("\n".join(missing or ["everything is copied"]), file=sys.stderr)
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
