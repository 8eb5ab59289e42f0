"""The look of every chart, and how it is written: PNG, SVG and PDF. matplotlib is loaded only when something is drawn (extra `report`).

Charts live in `acct.reporting.charts`, one module for each idea. Files are the same bytes for the same input: no dates, fixed ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from acct.errors import ConfigError

COLOURS = {
    "acct": "#0b5fa5", "target_full": "#222222", "source_full": "#7f7f7f", "random": "#c44e52", "random_retrained": "#e39a9c",
    "uniform_retrained": "#dd8452", "native_kv": "#55a868", "bridge_only": "#8172b3", "snapkv": "#937860", "pyramidkv": "#ccb974",
    "snapkv_query_aware": "#5b3a29",
}  # fmt: skip
"""Of methods; another one takes matplotlib's next colour."""
SEQUENTIAL = "viridis"
DOTS_PER_INCH = 150
STYLE = {
    "font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "lines.linewidth": 1.4, "lines.markersize": 4,
    "svg.hashsalt": "acct", "svg.fonttype": "none", "pdf.fonttype": 42,
}  # fmt: skip


@contextmanager
def styled() -> Iterator[None]:
    """STYLE inside the block, the process's own settings after it. Everything that draws runs inside one.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("plots need matplotlib, which is not installed: pip install 'acct[report]'.") from error
    with matplotlib.rc_context(STYLE):
        yield


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes on a canvas of its own: the process's backend stays as it is.

    Args:
        width, height: inches. options: of `Figure.subplots` (sharex, sharey, ...).
    Returns:
        the figure, and axes as an array [row, column].
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def save(figure: Any, folder: Path | str, name: str) -> list[Path]:
    """Write <folder>/<name>.{png,svg,pdf}."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    dates = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    paths = [folder / f"{name}{ending}" for ending in dates]
    for path in paths:
        figure.savefig(path, dpi=DOTS_PER_INCH, metadata=dates[path.suffix])
        figure.set_layout_engine("none")  # keep the layout that the first file found
    return paths


def spread(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Lengths of error bars [2, point] from values [point] and intervals [point, 2]; an undefined interval has none."""
    return np.nan_to_num(np.abs(bounds - values[:, None]).T)


def heat_map(axes: Any, values: np.ndarray, *, rows: str, columns: str, title: str, most: float | None = None, numbers: str = "") -> Any:
    """A grid of colours, dark for little; returns the image, for a colour bar.

    Args:
        values: [row, column], NaN left white. rows, columns: labels of the axes. most: end of the scale, None for the largest.
        numbers: format of a number written into each cell, "" for none.
    """
    image = axes.imshow(values, aspect="auto", cmap=SEQUENTIAL, vmin=min(0.0, float(np.nanmin(values))), vmax=most)
    axes.set(xlabel=columns, ylabel=rows, title=title)
    for count, place in ((values.shape[1], axes.xaxis), (values.shape[0], axes.yaxis)):
        place.set_ticks(range(0, count, max(count // 16, 1)))
    if numbers:
        middle = (image.norm.vmin + image.norm.vmax) / 2
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "black" if value > middle else "white"
                axes.text(column, row, format(value, numbers), ha="center", va="center", fontsize=6, color=colour)
    return image
