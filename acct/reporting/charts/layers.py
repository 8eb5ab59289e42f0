"""Curves over target layers, a panel for each run: what the charts of rank correlation and of attention divergence share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from acct.reporting.charts.sources import Run, Sources
from acct.reporting.plots import new_figure, save

Curves = Mapping[str, list[list[float]]]
"""By label, values [example][layer]."""
PANEL = (2.3, 1.8)  # inches
COLUMNS = 3


def chart(
    sources: Sources, shown: Sequence[tuple[Run, Curves]], colours: Mapping[str, str], folder: Path, name: str, ylabel: str
) -> list[Path]:
    """Means over examples with their intervals as bands.

    Args:
        shown: at least one run with its curves. colours: by label. name: of the files.
    """
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure, grid = new_figure(0.5 + PANEL[0] * columns, 0.5 + PANEL[1] * rows, rows, columns, sharey=True)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    handles: dict[str, object] = {}
    for axes, (run, curves) in zip(grid.flat, shown):
        for label, values in curves.items():
            middle, bounds = sources.means(values)
            layers = np.arange(len(middle))
            (handles[label],) = axes.plot(layers, middle, marker="o", color=colours[label])
            axes.fill_between(layers, bounds[:, 0], bounds[:, 1], color=colours[label], alpha=0.2, linewidth=0)
        axes.set(title=run.title, xlabel="target layer")
        axes.xaxis.get_major_locator().set_params(integer=True)
    low, high = grid[0, 0].get_ylim()  # shared by all panels
    grid[0, 0].set_ylim(min(0.0, low), high)
    for row in grid:
        row[0].set_ylabel(ylabel)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles))
    return save(figure, folder, name)
