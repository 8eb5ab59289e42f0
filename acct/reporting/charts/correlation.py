"""Rank correlation of scores and deletion utilities in each target layer, on held-out examples."""

from __future__ import annotations

from pathlib import Path

from acct.reporting.charts.layers import chart
from acct.reporting.charts.sources import Drawn, Sources
from acct.reporting.plots import COLOURS

RANK, KEPT = "rank correlation", "kept share of the utility"


def draw(sources: Sources, folder: Path) -> Drawn:
    """<folder>/rank_correlation.*: Spearman's rho, and the share of the utility in reach that the top of the ranking keeps."""
    found = [(run, {RANK: rho, KEPT: run.diagnosis["kept_utility"]}) for run, rho in sources.diagnosed("rank_correlation") if run.diagnosis]
    if not found:
        return Drawn(missing=(f"no diagnosis with a learned ranking: acct diagnose scale={sources.scale}",))
    colours = {RANK: COLOURS["acct"], KEPT: COLOURS["native_kv"]}
    return Drawn(tuple(chart(sources, found, colours, folder, "rank_correlation", "held-out mean")))
