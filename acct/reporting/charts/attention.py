"""Divergence of the target's attention over compiled keys from that over its own, in each layer, for the Bridge and the Compiler."""

from __future__ import annotations

from pathlib import Path

from acct.reporting.charts.layers import chart
from acct.reporting.charts.sources import Drawn, Sources
from acct.reporting.plots import COLOURS

LABELS = {"bridge": "Bridge alone", "compiler": "Compiler"}


def draw(sources: Sources, folder: Path) -> Drawn:
    """<folder>/attention_kl.*"""
    found = [(run, {LABELS[name]: values for name, values in curves.items()}) for run, curves in sources.diagnosed("attention_kl")]
    if not found:
        return Drawn(missing=(f"no diagnosis: acct diagnose scale={sources.scale}",))
    colours = {LABELS["bridge"]: COLOURS["bridge_only"], LABELS["compiler"]: COLOURS["acct"]}
    return Drawn(tuple(chart(sources, found, colours, folder, "attention_kl", "KL(native || mounted), nats")))
