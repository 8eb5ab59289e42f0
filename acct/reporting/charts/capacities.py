"""Heat map of the slots that each unit keeps by the trained Allocator: layer x KV head, a chart for each run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from acct.reporting.charts.sources import Drawn, Run, Sources
from acct.reporting.plots import heat_map, new_figure, save


def noted(run: Run) -> dict[str, Any] | None:
    """Counts with their context length: of the diagnosis, or of the evaluation."""
    for source in (run.diagnosis, run.evaluation):
        if source and source.get("capacities"):
            return dict(source["capacities"])
    return None


def draw(sources: Sources, folder: Path) -> Drawn:
    """<folder>/capacities_<run>.* for every run that noted its counts."""
    files: list[Path] = []
    for run in sources.runs:
        found = noted(run)
        if found is not None:
            files += chart(np.array(found["counts"]), folder, run.name, found["context_tokens"], run.title)
    command = f"no run noted its capacities: acct evaluate or acct diagnose, scale={sources.scale}"
    return Drawn(tuple(files), () if files else (command,))


def chart(counts: np.ndarray, folder: Path, name: str, context_tokens: int, title: str) -> list[Path]:
    """One heat map.

    Args:
        counts: [layer, head], tail included. name: of the files. context_tokens: N that the counts are for.
    """
    figure, grid = new_figure(max(1.6 + 0.45 * counts.shape[1], 2.6), 1.3 + 0.26 * counts.shape[0])
    share = 100 * counts.sum() / (counts.size * context_tokens)
    heading = f"{title}\nslots of {context_tokens} ({share:.0f}% kept)"
    small = counts.shape[1] <= 16
    image = heat_map(grid[0, 0], counts, rows="target layer", columns="KV head", title=heading, numbers=".0f" if small else "")
    figure.colorbar(image, ax=grid[0, 0])
    return save(figure, folder, f"capacities_{name}")
