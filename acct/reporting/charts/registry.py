"""The charts by name. A new one is one module, one line here and one test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from acct.errors import UnknownName
from acct.reporting.charts import attention, bridge, budget, capacities, correlation, relative, survival
from acct.reporting.charts.sources import Drawn, Sources
from acct.reporting.plots import styled

CHARTS: dict[str, Callable[[Sources, Path], Drawn]] = {
    "relative": relative.draw,
    "budget_curve": budget.draw,
    "capacities": capacities.draw,
    "survival": survival.draw,
    "rank_correlation": correlation.draw,
    "bridge_r2": bridge.draw,
    "attention_kl": attention.draw,
}


def write_charts(sources: Sources, folder: Path | str, names: Sequence[str] = ()) -> dict[str, Drawn]:
    """Draw charts into a folder as PNG, SVG and PDF.

    Args:
        names: of CHARTS, none for all.
    Returns:
        by name, the files and what is missing.
    Raises:
        UnknownName: no such chart; nothing is drawn then. ConfigError: matplotlib is not installed.
    """
    for name in names:
        if name not in CHARTS:
            raise UnknownName("figure", name, CHARTS)
    with styled():
        return {name: CHARTS[name](sources, Path(folder)) for name in names or CHARTS}
