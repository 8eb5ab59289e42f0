"""Table 4: the training schedule as configured. Every cell is read from the composed configuration; nothing is typed here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from acct.config.root import as_dict, leaves
from acct.config.training import STAGES
from acct.reporting.tables import Block, Table, Text
from acct.training.loop import batches
from appendix_tables.inputs import Inputs

OURS = " [ours]"
SHARED = ("budget", "supervision", "allocator", "compiler")
"""Groups with settings of the losses and of the supervision, beside the stages' own."""
LEFT_OUT = ("limit", "warn_above", "width", "feed_forward_width", "depth", "latents")
"""Widths stand in Table 5; limits and warnings train nothing."""


def shown(value: Any) -> Text:
    """A setting as it is printed; null means that it is off or follows from the pair."""
    if value is None:
        return Text("null")
    if isinstance(value, float):
        return Text(f"{value:g}")
    return Text(f"{value:,}" if type(value) is int else str(value))


def table(inputs: Inputs) -> Table:
    """One block for the stages, one for each further group; a setting on which the paper is silent carries a mark."""
    config = inputs.config
    stages = [getattr(config.training, stage) for stage in STAGES]
    rows = []
    for item in fields(stages[0]):
        mark = OURS if item.metadata.get("paper", "").startswith("silent") else ""
        rows.append((item.name.replace("_", " ") + mark, tuple(shown(getattr(stage, item.name)) for stage in stages)))
    steps = [len(batches([1] * stage.examples, stage.batch, stage.seed, 0, stage.regroup)) * stage.epochs for stage in stages]
    rows.append(("steps, computed", tuple(map(shown, steps))))
    blocks = [Block("Stages (AdamW, linear warm-up)", tuple(stage.capitalize() for stage in STAGES), tuple(rows))]
    for group in SHARED:
        settings = []
        for path, item, value in leaves(getattr(config, group)):
            if path in LEFT_OUT:
                continue
            mark = OURS if item.metadata.get("paper", "").startswith("silent") else ""
            settings.append((path.replace("_", " ") + mark, (shown(value),)))
        blocks.append(Block(group.capitalize(), ("value",), tuple(settings)))
    run = {"models' precision": config.runtime.dtype, "data set": config.data.dataset, "split": config.data.split}
    blocks.append(Block("Data and precision", ("value",), tuple((name, (Text(str(value)),)) for name, value in run.items())))
    read = {group: as_dict(getattr(config, group)) for group in ("training", *SHARED)} | {"run": run}
    notes = (
        f"Settings of scale={config.scale}, retention {config.budget.retention:g}, read from the composed configuration. "
        f"{OURS.strip()}: the paper's text leaves the value open; the README's table of open choices gives the reasons.",
    )
    caption = f"Training schedule as configured (scale={config.scale})."
    return Table("table4", caption, tuple(blocks), (), notes, inputs.provenance(read, f"configuration of scale={config.scale}"))
