"""Held-out R2 of the Bridge for every unit: keys beside values, layer x KV head, a chart for each run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from acct.reporting.charts.sources import Drawn, Sources
from acct.reporting.plots import heat_map, new_figure, save


def draw(sources: Sources, folder: Path) -> Drawn:
    """<folder>/bridge_r2_<run>.*; one scale, up to 1, for both grids."""
    files: list[Path] = []
    for run, grids in sources.diagnosed("bridge_r2"):
        values = {name: np.array(grids[name], dtype=np.float64) for name in ("keys", "values")}
        layers, heads = values["keys"].shape
        figure, grid = new_figure(max(2.2 + 0.8 * heads, 4.0), 1.3 + 0.26 * layers, 1, 2, sharey=True)
        for axes, (name, one) in zip(grid[0], values.items()):
            heading = f"{name}, mean {np.nanmean(one):.2f}"
            shown = {"rows": "target layer" if name == "keys" else "", "columns": "KV head"}
            image = heat_map(axes, one, **shown, title=heading, most=1.0, numbers=".2f" if heads <= 8 else "")
        figure.colorbar(image, ax=grid[0, 1])
        figure.suptitle(f"{run.title}: held-out R² of the Bridge", fontsize=8.5)
        files += save(figure, folder, f"bridge_r2_{run.name}")
    return Drawn(tuple(files), () if files else (f"no diagnosis: acct diagnose scale={sources.scale}",))
