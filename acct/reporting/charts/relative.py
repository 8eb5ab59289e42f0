"""Bars of Relative by method, a chart for each task."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from acct.reporting.charts.sources import Drawn, Sources
from acct.reporting.figures import REFERENCE, Sheet
from acct.reporting.names import METHODS, TASKS, label
from acct.reporting.plots import COLOURS, new_figure, save, spread


def draw(sources: Sources, folder: Path) -> Drawn:
    """<folder>/relative_<task>.* for every task of the configured setting."""
    sheet = sources.sheet(sources.variant, sources.retention)
    if sheet is None:
        return Drawn(missing=(f"no records at retention {sources.retention:g}: acct evaluate scale={sources.scale}",))
    return Drawn(tuple(path for task in sheet.tasks for path in chart(sheet, task, folder)))


def chart(sheet: Sheet, task: str, folder: Path) -> list[Path]:
    """Mean Relative over directions by method, with intervals; the line is Target Full. No file where nothing is defined."""
    bars = [(method, sheet.mean_relative(task, method)) for method in sheet.methods if method != REFERENCE]
    shown = [(method, sheet.interval(sampled)) for method, sampled in bars if sampled is not None and np.isfinite(sampled.value)]
    if not shown:
        return []
    figure, grid = new_figure(1.2 + 0.55 * len(shown), 3.0)
    axes = grid[0, 0]
    values = np.array([100 * interval.value for _, interval in shown])
    bounds = np.array([[100 * interval.lower, 100 * interval.upper] for _, interval in shown])
    colours = [COLOURS["acct"] if method == "acct" else "0.7" for method, _ in shown]
    axes.bar(range(len(shown)), values, yerr=spread(values, bounds), capsize=3, color=colours)
    axes.axhline(100, color=COLOURS[REFERENCE], linewidth=0.8)
    axes.set_xticks(range(len(shown)), [label(method, METHODS) for method, _ in shown], rotation=40, ha="right")
    axes.set(ylabel="Relative to Target Full (%)", title=label(task, TASKS))
    return save(figure, folder, f"relative_{task}")
