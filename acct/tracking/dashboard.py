"""The W&B dashboard as code: which panels there are is data here, so that it can be read, tested and published from any machine.

    training      loss, terms, gradient norm and learning rate of every stage, against the stage's own step
    held out      what each stage measures on examples that it never saw; R2 of the Bridge by layer
    evaluation    figures by task and method, the table of all figures with intervals, the heat map of capacities
    diagnosis     charts of `acct diagnose`
    system        CPU, memory, GPU

Runs are grouped by direction and job type. The workspace is built with the package wandb-workspaces; without it, or without a login, the
same panels are written as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from acct.config.training import STAGES
from acct.errors import ConfigError

NAME = "ACCT"
GROUPS = ("Group", "JobType")
TERMS: dict[str, tuple[str, ...]] = {
    "cartographer": ("loss", "gradient_norm", "learning_rate"),
    "allocator": ("loss", "answer_nll", "gradient_norm", "learning_rate"),
    "compiler": ("loss", "key_direction", "key_scale", "value", "attention", "behaviour", "gradient_norm", "learning_rate"),
}
HELD_OUT: dict[str, tuple[str, ...]] = {
    "cartographer": ("rank_correlation", "kept_utility"),
    "allocator": ("uniform_answer_nll", "learned_answer_nll"),
    "compiler": ("bridge_value", "compiler_value", "bridge_attention", "compiler_attention"),
}
MAIN_METHODS = ("target_full", "acct", "source_full", "no_context", "native_kv", "random", "bridge_only")


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        kind: "line" over x, "bar" of last values, "images" or "table". metrics: what it shows; keys of images, the key of one table.
        x: metric of the horizontal axis of a line.
    """

    title: str
    kind: str
    metrics: tuple[str, ...]
    x: str = ""
    log_y: bool = False


@dataclass(frozen=True)
class PanelSection:
    """Panels that are shown together."""

    name: str
    panels: tuple[Panel, ...]


def panels(tasks: Sequence[str]) -> list[PanelSection]:
    """Every section of the dashboard.

    Args:
        tasks: those that evaluations score; one bar panel each.
    """
    training, held_out = [], []
    for stage in STAGES:
        lines = {term: f"{stage}/{term}" for term in TERMS[stage]}
        parts = [term for term in TERMS[stage] if term not in ("gradient_norm", "learning_rate")]
        training += [Panel(f"{stage}: {term}", "line", (lines[term],), f"{stage}/step", term == "loss") for term in parts]
        training += [Panel(f"{stage}: {term}", "line", (lines[term],), f"{stage}/step") for term in ("gradient_norm", "learning_rate")]
        held_out.append(Panel(f"{stage}, held out", "bar", tuple(f"{stage}_held_out/{term}" for term in HELD_OUT[stage])))
    held_out.append(Panel("Bridge R2 by layer", "line", ("bridge/r2_keys", "bridge/r2_values"), "bridge/step"))
    evaluation = [Panel(task, "bar", tuple(f"evaluation/{task}/{method}" for method in MAIN_METHODS)) for task in tasks]
    evaluation += [
        Panel("ACCT / Target Full", "bar", tuple(f"evaluation/relative/{task}/acct" for task in tasks)),
        Panel("Figures with intervals", "table", ("evaluation/figures",)),
        Panel("Slots by layer and head", "images", ("evaluation/capacities",)),
    ]
    charts = ("capacities", "survival", "rank_correlation", "bridge_r2", "attention_kl")
    diagnosis = [Panel(chart.replace("_", " "), "images", (f"diagnosis/{chart}",)) for chart in charts]
    system = [Panel(name, "line", (f"system/{name}",), "Relative Time (Wall)") for name in ("cpu", "proc.memory.rssMB", "gpu.0.gpu")]
    named = {"Training": training, "Held out": held_out, "Evaluation": evaluation, "Diagnosis": diagnosis, "System": system}
    return [PanelSection(name, tuple(found)) for name, found in named.items()]


def specification(tasks: Sequence[str]) -> dict[str, Any]:
    """The panels as plain JSON values."""
    return {"name": NAME, "group_by": list(GROUPS), "sections": [asdict(section) for section in panels(tasks)]}


def workspace(tasks: Sequence[str], entity: str, project: str) -> Any:
    """The `wandb_workspaces` Workspace of the panels; nothing is sent before its `save()`.

    Raises:
        ConfigError: wandb-workspaces is not installed.
    """
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as spaces
    except ImportError as error:
        raise ConfigError("publishing the dashboard needs the package wandb-workspaces: pip install 'acct[dashboard]'.") from error

    def built(panel: Panel) -> Any:
        if panel.kind == "line":
            return reports.LinePlot(title=panel.title, x=panel.x, y=list(panel.metrics), log_y=panel.log_y or None)
        if panel.kind == "bar":
            return reports.BarPlot(title=panel.title, metrics=list(panel.metrics))
        if panel.kind == "images":
            return reports.MediaBrowser(title=panel.title, media_keys=list(panel.metrics))
        return reports.WeavePanelSummaryTable(table_name=panel.metrics[0])

    sections = [
        spaces.Section(name=section.name, panels=[built(panel) for panel in section.panels], is_open=section.name != "System")
        for section in panels(tasks)
    ]
    grouped = spaces.RunsetSettings(groupby=[spaces.Metric(name) for name in GROUPS])
    return spaces.Workspace(entity=entity, project=project, name=NAME, sections=sections, runset_settings=grouped)
