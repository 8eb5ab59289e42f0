"""Copy what `make reproduce-all` wrote into the folders beside this file: python experiments/collect.py [results/micro]

    table1 to table3, seeds, claims  the Markdown between the two markers of <folder>/README.md, the CSV beside it
    claims                           also the ledger as JSON, from which the README of the repository shows an excerpt
    figures                          every chart as PNG, and a README that shows them
    training                         examples a second of every stage, the Compiler's step in target forwards, seconds and memory
    latency                          of results/cpu: every table, Figure 2, and the documents with all repetitions
    runs                             one JSON file a run: configuration, provenance, cards of the stages, what the records are

Weights and records stay in the results folder. What is not there yet is named, and its copy is left as it is.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from acct.reporting import claims_excerpt
from acct.reporting.charts.registry import CHARTS
from acct.reporting.records import read_records
from acct.training.files import hash_json

BEGIN, END = "<!-- outcome:begin -->\n", "<!-- outcome:end -->"
FOLDER = Path(__file__).resolve().parent
LATENCY_TABLES = (
    "latency_aims", "table11", "table12", "table13", "table14", "table15", "latency_comparison", "latency_growth", "latency_roofline",
)  # fmt: skip
TRAINING_HEADS = (
    "Cartographer (examples/s)", "Allocator (examples/s)", "Compiler (examples/s)", "Compiler step (target forwards)",
    "the same, frozen parts kept", "seconds in all", "peak memory (GiB)",
)  # fmt: skip
STAGES = ("cartographer", "allocator", "selections", "compiler")


def filled(readme: str, outcome: str) -> str:
    """The README with the text as its outcome, headings two levels down."""
    head, rest = readme.split(BEGIN)
    _, tail = rest.split(END)
    body = "".join(f"##{line}" if line.startswith("#") else line for line in outcome.strip().splitlines(keepends=True))
    return f"{head}{BEGIN}{body}\n{END}{tail}"


def copy_outcome(source: Path, folder: Path) -> list[str]:
    """<source>.md between the markers of the folder's README, <source>.csv beside it; what is missing, in words."""
    markdown, readme = source.with_suffix(".md"), folder / "README.md"
    if not markdown.is_file():
        return [f"{markdown} is not there: make reproduce-all, or acct tables and acct claims."]
    readme.write_text(filled(readme.read_text(encoding="utf-8"), markdown.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.copyfile(source.with_suffix(".csv"), folder / f"{source.name}.csv")
    return []


def copy_ledger(source: Path, folder: Path) -> list[str]:
    """The ledger as JSON, and its excerpt in the README of the repository."""
    if not source.is_file():
        return [f"{source} is not there: acct claims."]
    shutil.copyfile(source, folder / "claims" / source.name)
    document = folder.parent / "README.md"
    document.write_text(claims_excerpt.filled(document.read_text(encoding="utf-8"), claims_excerpt.excerpt(source)), encoding="utf-8")
    return []


def copy_figures(source: Path, folder: Path) -> list[str]:
    """Every PNG, and a README with the charts in the registry's order."""
    images = sorted(source.glob("*.png"))
    if not images:
        return [f"{source} holds no figures: make figures."]
    for old in folder.glob("*.png"):
        old.unlink()
    sections = []
    for name, chart in CHARTS.items():
        own = [image for image in images if image.stem == name or image.stem.startswith(f"{name}_")]
        if own:
            pictures = "\n\n".join(f"![{image.stem}]({image.name})" for image in own)
            sections.append(f"# {name}\n\n`acct figures {name} scale=micro`: {first_line(chart)}\n\n{pictures}\n")
        for image in own:
            shutil.copyfile(image, folder / image.name)
    readme = folder / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8"), "\n".join(sections)), encoding="utf-8")
    return []


def training_table(provenances: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each run, from its training's provenance; a dash for what it did not train or does not say."""
    rows = ["| run | " + " | ".join(TRAINING_HEADS) + " |", "|---|" + "---:|" * len(TRAINING_HEADS)]
    for name, facts in provenances.items():
        cost = facts.get("compiler_step_target_forwards", {})
        rates = [facts.get(f"{stage}_examples_per_second") for stage in ("cartographer", "allocator", "compiler")]
        numbers = [*rates, cost.get("fresh"), cost.get("kept"), sum(facts["phases_seconds"].values()), facts["peak_memory_bytes"] / 2**30]
        rows.append(f"| {name} | " + " | ".join("–" if number is None else f"{number:.1f}" for number in numbers) + " |")
    machines = {f"commit {facts['commit'][:12]}; {facts['processor']}, {facts['cores']} cores" for facts in provenances.values()}
    return "\n".join([*rows, "", f"Provenance: {'; '.join(sorted(machines))}", ""])


def copy_training(results: Path, folder: Path) -> list[str]:
    """What training cost, of every run that has begun."""
    found = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*/provenance.json"))}
    if not found:
        return [f"{results} holds no run: make reproduce-table1."]
    readme = folder / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8"), training_table(found)), encoding="utf-8")
    return []


def copy_latency(results: Path, folder: Path) -> list[str]:
    """Tables of a scale's latency in one outcome, Figure 2, and each direction's document with its raw repetitions."""
    documents = sorted(path for path in (results / "latency").glob("*.json") if path.name != "latency.json")
    if not documents:
        return [f"{results}/latency holds nothing timed: make reproduce-latency SCALE={results.name}."]
    tables = [path for name in LATENCY_TABLES if (path := results / "tables" / f"{name}.md").is_file()]
    readme = folder / "README.md"
    outcome = "\n".join(path.read_text(encoding="utf-8") for path in tables) + "\n![Figure 2](figure2.png)\n"
    readme.write_text(filled(readme.read_text(encoding="utf-8"), outcome), encoding="utf-8")
    for path in (*documents, results / "figures" / "figure2.png"):
        shutil.copyfile(path, folder / path.name)
    return []


def first_line(described: Any) -> str:
    return (described.__doc__ or "").strip().splitlines()[0]


def run_summary(run: Path) -> dict[str, Any]:
    """Everything about a finished run but its weights and its answers.

    The cards are those of its stages (of a published run, cards/<stage>.json where the weights were too large); `records` says how many
    answers there are of which methods, and their hash.
    """

    def known(path: Path) -> Any:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    frame = read_records(run / "evaluation").frame
    answers = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return {
        "configuration": yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8")),
        "training": known(run / "provenance.json"),
        "cards": {stage: card for stage in STAGES if (card := known(run / stage / "card.json") or known(run / "cards" / f"{stage}.json"))},
        "evaluation": known(run / "evaluation" / "provenance.json"),
        "records": {"rows": len(frame), "methods": sorted(frame["method"].unique()), "sha256": hash_json(answers)},
    }


def copy_runs(results: Path, folder: Path) -> list[str]:
    """One summary for each evaluated run, in place of all earlier ones."""
    runs = sorted(path.parent.parent for path in results.glob("*/evaluation/records.parquet"))
    if not runs:
        return [f"{results} holds no evaluated run: make reproduce-all."]
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for run in runs:
        (folder / f"{run.name}.json").write_text(json.dumps(run_summary(run), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return []


def main(arguments: list[str]) -> int:
    results = Path(arguments[0]) if arguments else FOLDER.parent / "results/micro"
    steps: list[Callable[[], list[str]]] = [
        *(lambda name=name: copy_outcome(results / "tables" / name, FOLDER / name) for name in ("table1", "table2", "table3", "seeds")),
        lambda: copy_outcome(results / "claims", FOLDER / "claims"),
        lambda: copy_ledger(results / "claims.json", FOLDER),
        lambda: copy_figures(results / "figures", FOLDER / "figures"),
        lambda: copy_runs(results, FOLDER / "runs"),
        lambda: copy_training(results, FOLDER / "training"),
        lambda: copy_latency(results.parent / "cpu", FOLDER / "latency"),
    ]
    missing = [line for step in steps for line in step()]
    print("\n".join(missing or ["everything is copied"]), file=sys.stderr)
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
