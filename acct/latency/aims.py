"""What a conversion is aimed at beside what was timed: ratios within one process, which carry over between machines.

Speed-up: target prefill / conversion, on a CPU at least 25 at 512 tokens and 40 at 2,048, on a GPU at least 60 from 18,000 tokens on.
Growth: exponent of the conversion's time in the context's length, at most 1.1. Memory: mounted bytes over 2 P k d numbers at most 1.05,
extra memory of a conversion over its output at most 2.5. Linear map: time of a map of the whole context over the conversion's at the same
length, above 1; a map for each target head reads all heads of its source layers, a head-local one a single head, and does far less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from acct.reporting.names import direction_label
from acct.reporting.tables import Block, Table, Text

SPEEDUPS = {"cpu": {512: 25.0, 2048: 40.0}, "cuda": {18_000: 60.0}}
"""Least speed-up by kind of machine: at exactly this length on a CPU, from it on elsewhere."""
GROWTH, MOUNTED, PEAK = 1.1, 1.05, 2.5


def aims(documents: Sequence[dict[str, Any]], provenance: str) -> Table | None:
    """Aim, what was measured, and whether it holds: a grid for each direction; None where nothing that has an aim was timed."""
    blocks = []
    for one in documents:
        rows = tuple((what, (Text(aim), Text(seen), Text("holds" if holds else "does not hold"))) for what, aim, seen, holds in _rows(one))
        if rows:
            blocks.append(Block(direction_label(one["direction"]), ("Aim", "Measured", "Verdict"), rows))
    if not blocks:
        return None
    return Table(
        "latency_aims", "What the conversion is aimed at: ratios of medians within one process.", tuple(blocks), (), (), provenance
    )


def _rows(one: dict[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    """What is compared, the aim, the figure, whether it holds."""
    records = one["records"]
    kind = "cuda" if one["provenance"]["devices"] else "cpu"
    for record in records:
        tokens, speedup = record["context_tokens"], record["speedup"]
        for length, least in SPEEDUPS[kind].items():
            if tokens == length or (kind == "cuda" and tokens >= length):
                yield f"Target prefill / conversion, {tokens:,} tokens", f"at least {least:g}x", f"{speedup:.1f}x", speedup >= least
    if one.get("growth_exponent") is not None:
        lengths = [grown["context_tokens"] for grown in one["growth"]]
        exponent = one["growth_exponent"]
        name = f"Growth, {min(lengths):,} to {max(lengths):,} tokens"
        yield name, f"at most N^{GROWTH:g}", f"N^{exponent:.2f}", exponent <= GROWTH
    for label, key, most in (("Mounted / ideal bytes", "mounted_bytes", MOUNTED), ("Peak / output bytes", "peak_bytes", PEAK)):
        if records:
            worst = max(record[key] / record["ideal_bytes"] for record in records)
            yield f"{label}, worst length", f"at most {most:g}", f"{worst:.2f}", worst <= most
    for record in records:
        for layers, milliseconds in record["ridge_ms"].items():
            ratio, count = milliseconds / record["conversion_ms"], layers.removesuffix("_all")
            heads = "all heads" if layers.endswith("_all") else "head-local"
            name = f"Linear map, {count} layer{'s' * (count != '1')}, {heads} / conversion, {record['context_tokens']:,} tokens"
            yield name, "above 1x", f"{ratio:.2f}x", ratio > 1
