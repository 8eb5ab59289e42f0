"""The evaluation data (paper G): every task with its source, metric and size, from the registries and the composed configuration."""

from __future__ import annotations

from acct.data.hub import HubEntry
from acct.data.tasks.registry import FURTHER, TASKS
from acct.reporting.names import METRICS, label
from acct.reporting.names import TASKS as TASK_LABELS
from acct.reporting.tables import Block, Table, Text
from appendix_tables.inputs import Inputs
from appendix_tables.stated import EVALUATION_EXAMPLES, compared

COLUMNS = ("hub data set", "configuration", "split", "kind", "passage", "metric", "version", "examples")
NO_HUB = HubEntry("not on the hub")
KINDS = {"generate": "generated", "choice": "choice", "perplexity": "scored"}


def examples(inputs: Inputs) -> dict[str, int]:
    """Examples of each evaluated task, as configured."""
    evaluation = inputs.config.evaluation
    return {task: evaluation.examples_by_task.get(task, evaluation.examples) for task in evaluation.tasks}


def table(inputs: Inputs) -> Table:
    """One row for each task, and their sum."""
    counts, config = examples(inputs), inputs.config
    known, entries = TASKS | FURTHER, {name: config.data.hub.get(name, NO_HUB) for name in counts}
    rows = []
    for name, count in counts.items():
        task, entry = known[name], entries[name]
        words = (
            entry.path, entry.config or "default", entry.evaluation, KINDS[task.kind], "yes" if task.contextual else "no",
            METRICS[task.metric], str(task.version), f"{count:,}",
        )  # fmt: skip
        rows.append((label(name, TASK_LABELS), tuple(map(Text, words))))
    total = sum(counts.values())
    rows.append(("all", (*(Text("") for _ in COLUMNS[1:]), Text(f"{total:,}", bold=True))))
    notes = [
        f"The first {total:,} of a manifest drawn once from seed {config.evaluation.seed}, the same for every direction.",
        "Split: the one that has labels and is not trained on.",
        f"Training: {config.data.dataset}, split {config.data.split}; measured beside it: split {config.data.held_out_split}.",
    ]
    if config.scale == "paper":
        notes += ["", compared("examples of a direction", f"{total:,}", f"{EVALUATION_EXAMPLES:,}")]
    elif config.scale in ("micro", "tiny"):
        notes.append(
            f"At scale={config.scale} the rows come from the invented world of the embedded models, in the data sets' field names: the hub "
            "is not read, and the figures say nothing about the real data sets."
        )
    read = {
        "counts": counts,
        "hub": {name: str(entry) for name, entry in entries.items()},
        "versions": {name: known[name].version for name in counts},
    }
    line = inputs.provenance(read, f"registries and configuration of scale={config.scale}")
    return Table("data_sets", f"Evaluation data (scale={config.scale}).", (Block("Tasks", COLUMNS, tuple(rows)),), (), tuple(notes), line)
