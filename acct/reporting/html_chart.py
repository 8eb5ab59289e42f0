"""A small line chart as inline SVG, without a plotting library: speed-up against context length."""

from __future__ import annotations

import math
from collections.abc import Sequence

from acct.reporting.claims_latency import LatencyRecord
from acct.reporting.html_elements import Markup, tag
from acct.reporting.names import direction_label

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 48, 16, 14, 40
LINE, ROW = 18, 20
COLOURS = ("#1f5f99", "#c2571a", "#2d7d46", "#8a3fa0", "#a3271b", "#5a636d")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "5 2 1 2 1 2")


def ticks(most: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    step = 10 ** math.floor(math.log10(most / wanted))
    step = next(step * factor for factor in (1, 2, 5, 10) if most / (step * factor) <= wanted)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def speedup_chart(records: Sequence[LatencyRecord]) -> Markup:
    """One line for each direction; tokens on a logarithmic axis."""
    by_direction: dict[str, list[LatencyRecord]] = {}
    for record in sorted(records, key=lambda one: one.context_tokens):
        by_direction.setdefault(record.direction, []).append(record)
    tokens = sorted({record.context_tokens for record in records})
    low, high = math.log(tokens[0]), math.log(tokens[-1])
    scale = ticks(max(1 / record.share for record in records))
    height = HEIGHT + ROW * len(by_direction)

    def across(count: int) -> float:
        share = (math.log(count) - low) / (high - low) if high > low else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def up(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / scale[-1] * (HEIGHT - BOTTOM - TOP), 1)

    parts = []
    for value in scale:
        parts.append(_line(LEFT, up(value), WIDTH - RIGHT, up(value), stroke="#dcdfe3"))
        parts.append(_text(LEFT - 6, up(value) + 4, f"{value:g}x", "end"))
    if scale[-1] >= 1:
        parts.append(_line(LEFT, up(1), WIDTH - RIGHT, up(1), stroke="#1c2024", stroke_dasharray="3 3"))
    last = -math.inf
    for count in tokens:
        if across(count) - last >= 2.5 * LINE:
            last = across(count)
            parts.append(_text(last, HEIGHT - BOTTOM + LINE, str(count), "middle"))
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 4, "context tokens", "middle"))
    for number, (direction, own) in enumerate(by_direction.items()):
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)] or None
        points = [(across(record.context_tokens), up(1 / record.share)) for record in own]
        place = " ".join(f"{x:g},{y:g}" for x, y in points)
        parts.append(tag("polyline", points=place, fill="none", stroke=colour, stroke_width="2", stroke_dasharray=dashes))
        parts += [tag("circle", cx=f"{x:g}", cy=f"{y:g}", r="3", fill=colour) for x, y in points]
        row = HEIGHT + ROW * number + 6
        parts.append(_line(LEFT, row, LEFT + 30, row, stroke=colour, stroke_width="2", stroke_dasharray=dashes))
        parts.append(_text(LEFT + 38, row + 4, direction_label(direction), "start"))
    return tag(
        "svg", *parts, viewBox=f"0 0 {WIDTH} {height}", width=str(WIDTH), role="img", aria_label="speed-up against context length",
        font_family="system-ui, sans-serif", font_size="12",
    )  # fmt: skip


def _line(x1: float, y1: float, x2: float, y2: float, **attributes: str | None) -> Markup:
    return tag("line", x1=f"{x1:g}", y1=f"{y1:g}", x2=f"{x2:g}", y2=f"{y2:g}", **attributes)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return tag("text", text, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor, fill="#5a636d")
