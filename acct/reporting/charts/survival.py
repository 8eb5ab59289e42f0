"""Which tokens of one example survive in which layers: layer x token, coloured by the share of heads that keep it.

The context is written out below the columns and wrapped like text. Of a long context the stretch around its most kept token is shown.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from acct.reporting.charts.sources import Drawn, Run, Sources
from acct.reporting.plots import heat_map, new_figure, save

TOKENS_PER_LINE = 64
MOST_TOKENS = 384


def window(kept: np.ndarray, most: int) -> slice:
    """The stretch of at most `most` positions that holds the most kept slots, the first of several.

    Args:
        kept: heads that keep a token, [layer, context].
    """
    length = kept.shape[1]
    if length <= most:
        return slice(0, length)
    sums = np.convolve(kept.sum(axis=0), np.ones(most, dtype=np.int64), mode="valid")
    start = int(sums.argmax())
    return slice(start, start + most)


def draw(sources: Sources, folder: Path) -> Drawn:
    """<folder>/survival_<run>.* for every diagnosed run."""
    files: list[Path] = []
    for run, one in sources.diagnosed("survival"):
        files += chart(run, one, folder)
    return Drawn(tuple(files), () if files else (f"no diagnosis: acct diagnose scale={sources.scale} diagnosis.example=0",))


def chart(run: Run, one: dict[str, Any], folder: Path, per_line: int = TOKENS_PER_LINE, most: int = MOST_TOKENS) -> list[Path]:
    """One example of one run.

    Args:
        one: `survival` of a diagnosis. per_line: tokens of a line. most: tokens shown.
    """
    assert run.diagnosis is not None
    heads, kept = int(run.diagnosis["heads"]), np.array(one["kept"])
    layers, length = kept.shape
    shown = window(kept, most)
    starts = range(shown.start, shown.stop, per_line)
    height = 0.09 * layers + 0.55
    figure, grid = new_figure(0.8 + 0.125 * min(per_line, shown.stop - shown.start), 0.7 + height * len(starts), len(starts), 1)
    for axes, start in zip(grid[:, 0], starts):
        stop = min(start + per_line, shown.stop)
        part = np.full((layers, per_line), np.nan)
        part[:, : stop - start] = kept[:, start:stop] / heads
        image = heat_map(axes, part, rows="layer", columns="", title="", most=1.0)
        words = [" ".join(token.split()) or "·" for token in one["tokens"][start:stop]]
        colours = ["0.55" if position >= length - one["tail"] else "black" for position in range(start, stop)]
        axes.set_xticks(range(len(words)), [word.replace("$", r"\$") for word in words], rotation=90, fontsize=5)
        for tick, colour in zip(axes.get_xticklabels(), colours):
            tick.set_color(colour)
        axes.set_xlim(-0.5, min(per_line, shown.stop - shown.start) - 0.5)
        axes.tick_params(axis="x", length=0, pad=1)
    figure.colorbar(image, ax=grid[:, 0], label="share of heads that keep the token", shrink=min(1.0, 3 / len(starts)), aspect=30)
    question = " ".join(one["query"].split())
    everything = "" if shown.stop - shown.start == length else f", tokens {shown.start} to {shown.stop - 1} of {length}"
    text = f"{run.title}, {one['id']}{everything}. Query: {question} Answer: {' / '.join(one['answers'])}. Grey: the tail."
    figure.suptitle(textwrap.fill(text.replace("$", r"\$"), 130), fontsize=7)
    return save(figure, folder, f"survival_{run.name}")
