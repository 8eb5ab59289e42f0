"""Bar charts of Relative and heat maps of capacities, as PNG and SVG. matplotlib is loaded only here (extra `report`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from acct.errors import ConfigError
from acct.reporting.figures import REFERENCE, Sheet
from acct.reporting.names import METHODS, TASKS, label


def _figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes on a canvas of its own: the process's backend stays as it is."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib, which is not installed: pip install 'acct[report]'.") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _save(figure: Any, folder: Path, name: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def plot_relative(sheet: Sheet, folder: Path | str) -> list[Path]:
    """One chart for each task: mean Relative over directions by method, with intervals; the line is Target Full.

    Returns:
        the files written, <folder>/relative_<task>.{png,svg}.
    """
    written = []
    for task in sheet.tasks:
        bars = [(m, sheet.mean_relative(task, m)) for m in sheet.methods if m != REFERENCE]
        shown = [(m, sheet.interval(sampled)) for m, sampled in bars if sampled is not None and np.isfinite(sampled.value)]
        if not shown:
            continue
        figure, axes = _figure(1.2 + 0.75 * len(shown), 3.2)
        values = np.array([100 * interval.value for _, interval in shown])
        bounds = np.array([[100 * i.lower, 100 * i.upper] for _, i in shown])
        spread = np.nan_to_num(np.abs(bounds - values[:, None]).T)
        axes.bar(range(len(shown)), values, yerr=spread, capsize=3, color=["C0" if m == "acct" else "0.7" for m, _ in shown])
        axes.axhline(100, color="black", linewidth=0.8)
        axes.set_xticks(range(len(shown)), [label(m, METHODS) for m, _ in shown], rotation=40, ha="right")
        axes.set_ylabel("Relative to Target Full (%)")
        axes.set_title(label(task, TASKS))
        written += _save(figure, Path(folder), f"relative_{task}")
    return written


def plot_capacities(counts: np.ndarray, folder: Path | str, name: str, context_tokens: int) -> list[Path]:
    """Heat map of the slots that each unit keeps.

    Args:
        counts: [layer, head], tail included. name: of the files, usually the direction. context_tokens: N that the counts are for.
    """
    if counts.ndim != 2:
        raise ConfigError(f"capacities are a grid of layers x heads, got an array of shape {counts.shape}.")
    figure, axes = _figure(1.8 + 0.5 * counts.shape[1], 1.2 + 0.35 * counts.shape[0])
    image = axes.imshow(counts, aspect="auto", cmap="viridis", vmin=0)
    axes.set(xlabel="KV head", ylabel="target layer", title=f"slots of {context_tokens}")
    axes.set_xticks(range(counts.shape[1]))
    axes.set_yticks(range(counts.shape[0]))
    figure.colorbar(image, ax=axes)
    return _save(figure, Path(folder), f"capacities_{name}")
