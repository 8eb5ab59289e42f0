"""The budget curve: F1 against retention, with intervals; one panel for each direction and open-domain QA task (Table 2 as a picture).

Each point is a run of its own, trained at that retention. `random` mounts the target's exact states at random positions; the retrained
variants are runs whose own row `acct` is shown. A compressor on the target itself (SnapKV, ...) appears where its rows are in the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acct.reporting.charts.sources import Drawn, Sources
from acct.reporting.figures import REFERENCE
from acct.reporting.intervals import Interval
from acct.reporting.names import METHODS, TASKS, direction_label, in_order, label
from acct.reporting.plots import COLOURS, new_figure, save, spread

SHOWN = ("acct", "random", "snapkv", "snapkv_query_aware", "pyramidkv", "observed_attention", "expected_attention")
VARIANTS = ("random", "uniform")
PANEL = (2.1, 2.0)  # inches
Point = tuple[float, Interval]


def series(sources: Sources, direction: str, task: str, methods: Sequence[str], variants: Sequence[str]) -> dict[str, list[Point]]:
    """Points of every curve by retention, ascending; a variant's curve is named <variant>_retrained."""
    wanted = [(method, "", method) for method in methods] + [(f"{variant}_retrained", variant, "acct") for variant in variants]
    found: dict[str, list[Point]] = {}
    for name, variant, method in wanted:
        for own, retention in sorted(sources.settings, key=lambda setting: setting[1]):
            sheet = sources.sheet(own, retention) if own == variant else None
            sampled = sheet.sampled(direction, task, method) if sheet is not None else None
            if sheet is not None and sampled is not None:
                found.setdefault(name, []).append((retention, sheet.interval(sampled)))
    return found


def draw(sources: Sources, folder: Path, methods: Sequence[str] = SHOWN, variants: Sequence[str] = VARIANTS) -> Drawn:
    """<folder>/budget_curve.*; what is not there is named."""
    sheets = [sheet for setting in sources.settings if not setting[0] and (sheet := sources.sheet(*setting)) is not None]
    if not sheets:
        return Drawn(missing=(f"no records without a variant: acct evaluate scale={sources.scale}",))
    directions = list(dict.fromkeys(name for sheet in sheets for name in sheet.directions))
    tasks = in_order({task for sheet in sheets for task in sheet.tasks if sheet.metric[task] == "f1"}, TASKS)
    retentions = sorted({retention for _, retention in sources.settings})
    missing = []
    if len(retentions) < 2:
        missing.append(f"only retention {retentions[0]:g} was evaluated: acct reproduce table2 scale={sources.scale}")
    if not tasks:
        return Drawn(missing=(*missing, "no task with F1 was evaluated"))
    figure, grid = new_figure(
        0.6 + PANEL[0] * len(directions), 0.6 + PANEL[1] * len(tasks), len(tasks), len(directions), sharex=True, sharey="row"
    )
    seen: dict[str, object] = {}
    for row, task in enumerate(tasks):
        for column, direction in enumerate(directions):
            axes = grid[row, column]
            for name, points in series(sources, direction, task, methods, variants).items():
                x, values = np.array([share for share, _ in points]), np.array([one.value for _, one in points])
                bars = spread(values, np.array([[one.lower, one.upper] for _, one in points]))
                seen[name] = axes.errorbar(x, values, yerr=bars, marker="o", capsize=2, color=COLOURS.get(name))
            full = next((s for sheet in sheets if (s := sheet.sampled(direction, task, REFERENCE)) is not None), None)
            if full is not None:
                seen[REFERENCE] = axes.axhline(full.value, color=COLOURS[REFERENCE], linewidth=0.8, linestyle="--")
            axes.set_xscale("log", base=2)
            axes.set_xticks(retentions, [f"{share:g}" for share in retentions])
            axes.set_xlim(min(retentions) / 1.3, max(retentions) * 1.3)
            axes.set_ylim(0, 104)  # panels of a row share the axis: F1 in percent, with room for the markers
            if row == 0:
                axes.set_title(direction_label(direction))
            if row == len(tasks) - 1:
                axes.set_xlabel("retention (kept fraction)")
        grid[row, 0].set_ylabel(f"{label(task, TASKS)} F1 (%)")
    names = [
        label(name, {**METHODS, **{f"{variant}_retrained": f"{variant.capitalize()}, retrained" for variant in variants}}) for name in seen
    ]
    figure.legend(list(seen.values()), names, loc="outside lower center", ncols=min(len(names), 6))
    absent = [f"{variant}, retrained" for variant in variants if f"{variant}_retrained" not in seen]
    absent += ["snapkv"] if "snapkv" in methods and "snapkv" not in seen else []
    if absent:
        missing.append(f"not in the records: {', '.join(absent)}")
    return Drawn(tuple(save(figure, folder, "budget_curve")), tuple(missing))
