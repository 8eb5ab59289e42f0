"""Tables as values: one function for each; `render` writes them (spec 8).

A table is a pure function of records. Nothing in it is typed by hand: bold, Relative and means are computed; what was not run is a dash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from acct.reporting.figures import REFERENCE, Figure, Sheet, lower_is_better
from acct.reporting.intervals import Interval
from acct.reporting.names import COMPRESSORS, METHODS, METRICS, TASKS, direction_label, in_order, label

DASH = "–"


@dataclass(frozen=True)
class Cell:
    """One printed number.

    Attributes:
        interval: NaN value for what was not run. decimals: digits after the point. bold: an improvement over Target Full.
        factor: multiplies value and bounds before printing (100 for ratios shown in percent).
    """

    interval: Interval
    decimals: int = 1
    bold: bool = False
    factor: float = 1.0

    @property
    def defined(self) -> bool:
        return bool(np.isfinite(self.interval.value))

    def number(self) -> str:
        return f"{self.interval.value * self.factor:.{self.decimals}f}" if self.defined else DASH

    def bounds(self) -> str:
        """The interval as "[lower, upper]", empty where it is undefined."""
        lower, upper = (bound * self.factor for bound in (self.interval.lower, self.interval.upper))
        return f"[{lower:.{self.decimals}f}, {upper:.{self.decimals}f}]" if np.isfinite([lower, upper]).all() else ""


@dataclass(frozen=True)
class Text:
    """A word, or a number that has no interval: settings, counts, names."""

    text: str
    bold: bool = False

    @property
    def defined(self) -> bool:
        return bool(self.text) and self.text != DASH

    def number(self) -> str:
        return self.text or DASH

    def bounds(self) -> str:
        """Nothing: it is exact."""
        return ""


@dataclass(frozen=True)
class Block:
    """A titled grid: `columns` are the heads of the cells, `rows` pairs of a label and its cells."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | Text, ...]], ...]


@dataclass(frozen=True)
class Table:
    """A caption, grids, notes, and the figures behind them for the CSV."""

    name: str
    caption: str
    blocks: tuple[Block, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    provenance: str = ""


NOTHING = Cell(Interval(float("nan"), float("nan"), float("nan")))


def task_head(task: str, metric: str) -> str:
    """Head of one task's column, with its metric."""
    return f"{label(task, TASKS)} ({METRICS[metric]})"


def task_columns(sheet: Sheet) -> tuple[str, ...]:
    """Heads of the task columns."""
    return tuple(task_head(task, sheet.metric[task]) for task in sheet.tasks)


def merged_tasks(sheets: Sequence[Sheet]) -> tuple[list[str], dict[str, str]]:
    """Every task of several sheets in the tables' order, and their metrics."""
    metrics = {task: metric for sheet in sheets for task, metric in sheet.metric.items()}
    return in_order(metrics, TASKS), metrics


def figure_cell(sheet: Sheet, direction: str, task: str, method: str) -> Cell:
    """A figure; bold where the method improves on Target Full."""
    figure = sheet.figure(direction, task, method)
    if figure is None:
        return NOTHING
    full = sheet.sampled(direction, task, REFERENCE)
    better = full is not None and method != REFERENCE and (
        figure.figure.value < full.value if lower_is_better(figure.metric) else figure.figure.value > full.value
    )  # fmt: skip
    return Cell(figure.figure, 2 if lower_is_better(figure.metric) else 1, better)


def method_rows(sheet: Sheet, direction: str, methods: Sequence[str]) -> list[tuple[str, tuple[Cell, ...]]]:
    """One row of figures for each method."""
    return [(label(m, METHODS), tuple(figure_cell(sheet, direction, task, m) for task in sheet.tasks)) for m in methods]


def ratio_rows(sheet: Sheet, direction: str, methods: Sequence[str]) -> list[tuple[str, tuple[Cell, ...]]]:
    """Relative and gap closed of each method, in percent."""
    rows = []
    for method in methods:
        figures = [sheet.figure(direction, task, method) for task in sheet.tasks]
        for name, pick in (("Relative", "relative"), ("gap closed", "gap")):
            cells = tuple(NOTHING if figure is None else Cell(getattr(figure, pick), factor=100.0) for figure in figures)
            rows.append((f"{label(method, METHODS)}, {name} (%)", cells))
    return rows


def mean_block(sheet: Sheet, methods: Sequence[str]) -> Block:
    """Mean Relative over directions, per task and method, in percent."""
    rows = tuple(
        (label(m, METHODS), tuple(Cell(sheet.interval(sheet.mean_relative(task, m)), factor=100.0) for task in sheet.tasks))
        for m in methods
        if m != REFERENCE
    )
    return Block(f"Mean Relative over {len(sheet.directions)} direction(s) (%)", task_columns(sheet), rows)


def table1(sheet: Sheet) -> Table:
    """Direction x task x method, Relative and gap closed of ACCT, and the mean Relative over directions."""
    columns = task_columns(sheet)
    blocks = [
        Block(
            direction_label(direction), columns,
            (*method_rows(sheet, direction, sheet.methods), *ratio_rows(sheet, direction, ["acct"] if "acct" in sheet.methods else [])),
        )
        for direction in sheet.directions
    ]  # fmt: skip
    share = {round(1 / float(c["retention"]), 2) for c in sheet.records.configurations.values() if c.get("retention")}
    compression = f" at {share.pop():g}x compression" if len(share) == 1 else ""
    caption = (
        f"Task performance of ACCT{compression} against Target Full. F1 and accuracy in percent, perplexity lower is better; "
        f"{100 * sheet.bootstrap.confidence:g}% paired bootstrap intervals over examples. Bold: better than Target Full. "
        "Relative is method / Target Full, and Target Full / method for perplexity. Gap closed is (method - Source Full) / "
        "(Target Full - Source Full); a dash where Target Full is not better than Source Full."
    )
    return Table("table1", caption, (*blocks, mean_block(sheet, sheet.methods)), tuple(sheet.all()))


def budget_table(sheets: dict[float, Sheet], retentions: Sequence[float] = ()) -> Table:
    """Table 2: ACCT under several retentions, each trained apart; by direction, with Target Full as the reference.

    Args:
        sheets: by retention, 1.0 for no compression. Runs may differ in tasks: what one of them lacks is a dash.
        retentions: rows that are shown even if nothing was run for them. Compressors on the target itself, rows beyond the paper, follow
            ACCT where they were evaluated.
    """
    tasks, metric = merged_tasks(list(sheets.values()))
    shares = sorted({*sheets, *retentions}, reverse=True)
    counted = [direction for sheet in sheets.values() for direction in sheet.directions]
    directions = [one for one in dict.fromkeys(counted) if counted.count(one) > 1] or list(dict.fromkeys(counted))
    blocks = []
    for direction in directions:

        def cells(method: str, found: Sequence[Sheet], direction: str = direction) -> tuple[Cell, ...]:
            options = [[figure_cell(sheet, direction, task, method) for sheet in found] for task in tasks]
            return tuple(next((cell for cell in own if cell.defined), NOTHING) for own in options)

        rows = [("Target Full", cells(REFERENCE, [sheets[share] for share in shares if share in sheets]))]
        for share in shares:
            found = [sheets[share]] if share in sheets else []
            shown = ["acct", *(method for method in COMPRESSORS if any(method in sheet.methods for sheet in found))]
            rows += [(f"{label(method, METHODS)} {1 / share:g}x", cells(method, found)) for method in shown]
        blocks.append(Block(direction_label(direction), tuple(task_head(task, metric[task]) for task in tasks), tuple(rows)))
    figures = tuple(
        replace(figure, method=f"{figure.method}_{1 / retention:g}x") for retention, sheet in sheets.items() for figure in sheet.all()
        if figure.method in ("acct", *COMPRESSORS) and figure.direction in directions
    )  # fmt: skip
    lent = lent_notes({f"{1 / share:g}x": sheet for share, sheet in sheets.items()})
    caption = f"ACCT at several compression ratios, {'trained as noted' if lent else 'each trained separately'}."
    return Table("table2", caption, tuple(blocks), tuple(figures), notes=lent)


def lent_notes(sheets: Mapping[str, Sheet]) -> tuple[str, ...]:
    """One line for each run whose modules were trained under another retention (`paths.modules`).

    Args:
        sheets: by what the line calls the run.
    """
    found = []
    for name, sheet in sheets.items():
        for direction, configuration in sheet.records.configurations.items():
            if share := configuration.get("interface.trained_retention"):
                place = f"{name}, {direction_label(direction)}"
                found.append(f"{place}: modules trained at {1 / float(share):g}x, nothing trained for this budget.")
    return tuple(found)


def ablation_table(sheet: Sheet, retrained: Mapping[str, Sheet | None]) -> Table:
    """Table 3: parts of the method replaced, in the directions that have a retrained run.

    Args:
        sheet: runs without a variant: Target Full, ACCT, Bridge-only, Native KV, and the Random that is not retrained.
        retrained: by variant, the runs whose `acct` is that row (random, uniform); None for a row of dashes.
    """
    run = {name: other for name, other in retrained.items() if other is not None}
    directions = ablation_directions(sheet, retrained)
    blocks = []
    for direction in directions:
        rows = method_rows(sheet, direction, [m for m in (REFERENCE, "acct", "native_kv", "bridge_only", "random") if m in sheet.methods])
        for name, other in retrained.items():
            cells = tuple(NOTHING if other is None else figure_cell(other, direction, task, "acct") for task in sheet.tasks)
            rows.append((f"{name.capitalize()}, retrained", cells))
        blocks.append(Block(direction_label(direction), task_columns(sheet), tuple(rows)))
    figures = [figure for figure in sheet.all() if figure.direction in directions]
    for name, other in run.items():
        figures += [replace(figure, method=f"{name}_retrained") for figure in other.all() if figure.method == "acct"]
    return Table("table3", "Component ablations and state controls.", tuple(blocks), tuple(figures))


def ablation_directions(sheet: Sheet, retrained: Mapping[str, Sheet | None]) -> list[str]:
    """Directions of Table 3: those without a variant that have a retrained run too."""
    run = {direction for other in retrained.values() if other is not None for direction in other.directions}
    return [direction for direction in sheet.directions if direction in run] or list(sheet.directions)
