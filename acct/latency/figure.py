"""Figure 2: speed-up of the conversion over the target's prefill against context length, one line for each direction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acct.reporting.names import direction_label
from acct.reporting.plots import new_figure, save, styled


def figure2(documents: Sequence[dict[str, Any]], folder: Path | str) -> list[Path]:
    """Draw <folder>/figure2.{png,svg,pdf} from the directions that were timed; nothing where none was.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    own = [one for one in documents if one["records"]]
    if not own:
        return []
    with styled():
        figure, grid = new_figure(4.6, 3.0)
        axes = grid[0, 0]
        for one in own:
            lengths = [record["context_tokens"] for record in one["records"]]
            axes.plot(lengths, [record["speedup"] for record in one["records"]], marker="o", label=direction_label(one["direction"]))
        axes.axhline(1.0, color="#999999", linewidth=0.8, linestyle="--")
        axes.set(xlabel="context (tokens)", ylabel="target prefill / conversion", xscale="log")
        axes.set_ylim(bottom=0)
        ticks = sorted({record["context_tokens"] for one in own for record in one["records"]})
        axes.set_xticks(ticks, [f"{tick / 1024:g}K" if tick >= 1024 else str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.legend()
        return save(figure, folder, "figure2")
