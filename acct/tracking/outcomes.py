"""What commands hand to a tracker when they end: figures of an evaluation, charts of a diagnosis."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from acct.config.root import Config
from acct.errors import ConfigError
from acct.evaluation.report import EvaluationReport
from acct.reporting.charts.registry import CHARTS
from acct.reporting.charts.sources import Sources
from acct.reporting.names import METHODS, TASKS, label
from acct.reporting.plots import styled
from acct.tracking.tracker import Tracker, open_tracker

logger = logging.getLogger(__name__)
COLUMNS = (
    "direction", "task", "metric", "method", "value", "lower", "upper", "relative", "relative lower", "relative upper", "gap closed",
    "gap lower", "gap upper", "examples",
)  # fmt: skip
HEAT_MAP = ("capacities",)
OF_A_RUN = ("capacities", "survival", "rank_correlation", "bridge_r2", "attention_kl")
"""Charts that a diagnosis of one run supplies."""


def track_evaluation(config: Config, report: EvaluationReport) -> None:
    """The figures of one direction as metrics and as a table, and the heat map of its capacities.

    metrics.jsonl gets them under the stage "evaluation", in place of those of an earlier evaluation.
    """
    sheet = report.sheet
    figures = sheet.all()
    with open_tracker(config, "evaluate") as tracker:
        tracker.rewind("evaluation", 0)
        values = {f"{figure.task}/{figure.method}": figure.figure.value for figure in figures}
        values |= {f"relative/{figure.task}/{figure.method}": figure.relative.value for figure in figures if figure.method == "acct"}
        tracker.log("evaluation", 0, values | {"valid": float(report.validity.valid)})
        rows = [
            [
                one.direction, label(one.task, TASKS), one.metric, label(one.method, METHODS), one.figure.value, one.figure.lower,
                one.figure.upper, one.relative.value, one.relative.lower, one.relative.upper, one.gap.value, one.gap.lower, one.gap.upper,
                one.examples,
            ]
            for one in figures
        ]  # fmt: skip
        tracker.table("evaluation/figures", COLUMNS, rows)
        track_charts(tracker, config, "evaluation", HEAT_MAP)


def track_diagnosis(config: Config) -> None:
    """The charts of a diagnosis that has just been written."""
    with open_tracker(config, "diagnose") as tracker:
        track_charts(tracker, config, "diagnosis", OF_A_RUN)


def track_charts(tracker: Tracker, config: Config, stage: str, names: Sequence[str]) -> None:
    """Draw charts of the configured run and show them as "<stage>/<file>"; nothing is drawn where nobody looks."""
    if not tracker.sinks:
        return
    name = Path(config.paths.run).name
    sources = Sources(Path(config.paths.results), config.scale, config.budget.retention, config.paths.variant)
    sources.runs = [run for run in sources.runs if run.name == name]
    try:
        with TemporaryDirectory() as folder, styled():
            for chart in names:
                for path in CHARTS[chart](sources, Path(folder)).files:
                    if path.suffix == ".png":
                        tracker.image(f"{stage}/{path.stem.removesuffix(f'_{name}')}", path)
    except ConfigError as error:  # no matplotlib: figures are shown as numbers only
        logger.warning("charts are not shown in tracker.kind=%s: %s", config.tracker.kind, error)
