"""Runs of one setting trained with several seeds: means over seeds, with intervals over seeds (spec 8).

The bootstrap of Table 1 resamples examples and holds the trained weights fixed. What training itself varies by (order of the examples,
sampled layers and pairs, initial weights) shows only between runs of different seeds: with n of them, mean and sample standard
deviation s give

    mean +- t(n - 1) s / sqrt(n)        Student's t: n is small

One seed has no interval, and that is said. References that no training touches (Target Full, Source Full, No context) do not vary.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t

from acct.errors import ArtifactError
from acct.reporting.figures import REFERENCE, Sheet, lower_is_better
from acct.reporting.intervals import Bootstrap, Interval
from acct.reporting.names import METHODS, direction_label, in_order, label
from acct.reporting.records import load_records, training_seeds
from acct.reporting.tables import NOTHING, Block, Cell, Table, merged_tasks, task_head

NAME = "seeds"
COLUMNS = (
    "direction", "variant", "retention", "task", "metric", "method", "seeds", "mean", "lower", "upper", "deviation", "relative",
    "relative_lower", "relative_upper", "examples", "values",
)  # fmt: skip
WITHOUT_DRAWS = Bootstrap(resamples=1)
"""Only the figures themselves are read, not their intervals over examples."""


def t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean with Student's t interval; bounds are NaN for one value, everything is where a value is undefined or there is none."""
    found = np.asarray(values, dtype=np.float64)
    if not len(found) or not np.isfinite(found).all():
        return Interval(float("nan"), float("nan"), float("nan"))
    mean = float(found.mean())
    if len(found) == 1:
        return Interval(mean, float("nan"), float("nan"))
    half = float(t.ppf((1 + confidence) / 2, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found)))
    return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True)
class SeedRuns:
    """The runs of one setting by training seed.

    Raises:
        ArtifactError: a direction was scored on different examples under different seeds.
    """

    variant: str
    retention: float
    sheets: Mapping[int, Sheet]

    def __post_init__(self) -> None:
        known: dict[tuple[str, str], tuple[int, frozenset[str]]] = {}
        for seed, sheet in self.sheets.items():
            for (direction, task), rows in sheet.records.frame.groupby(["direction", "task"]):
                ids = frozenset(rows["example"])
                first, expected = known.setdefault((str(direction), str(task)), (seed, ids))
                if ids != expected:
                    raise ArtifactError(
                        f"{task}, {direction}: the runs of training seeds {first} and {seed} were scored on different examples "
                        f"({len(ids ^ expected)} not shared). A mean over seeds needs the same ones: evaluate again."
                    )

    @property
    def directions(self) -> list[str]:
        return list(dict.fromkeys(direction for sheet in self.sheets.values() for direction in sheet.directions))

    def seeds(self, direction: str) -> list[int]:
        """Training seeds of a direction, rising."""
        return sorted(seed for seed, sheet in self.sheets.items() if direction in sheet.directions)

    def methods(self) -> list[str]:
        """Every method of any seed, in the tables' order."""
        return in_order({method for sheet in self.sheets.values() for method in sheet.methods}, METHODS)

    def values(self, direction: str, task: str, method: str) -> dict[int, float]:
        """The figure of each seed that has it, in percent or as perplexity."""
        found = {seed: self.sheets[seed].sampled(direction, task, method) for seed in self.seeds(direction)}
        return {seed: one.value for seed, one in found.items() if one is not None}

    def relatives(self, direction: str, task: str, method: str) -> dict[int, float]:
        """The ratio to Target Full of each seed that has it."""
        found = {seed: self.sheets[seed].relative(direction, task, method) for seed in self.seeds(direction)}
        return {seed: one.value for seed, one in found.items() if one is not None}

    def title(self, direction: str) -> str:
        """The direction, the setting where it is not that of Table 1, and how many seeds there are."""
        setting = (f", {1 / self.retention:g}x" if self.retention != 0.25 else "") + (f", {self.variant}" if self.variant else "")
        return f"{direction_label(direction)}{setting}: {seed_words(self.seeds(direction))}"


def seed_words(seeds: Sequence[int]) -> str:
    """How many training seeds, and which."""
    if len(seeds) == 1:
        return f"one training seed only ({seeds[0]}), no interval over seeds"
    return f"{len(seeds)} training seeds ({', '.join(map(str, seeds))})"


def seed_runs(results_root: Path | str, scale: str) -> list[SeedRuns]:
    """Every setting of a scale that was evaluated with more than one training seed."""
    return [
        SeedRuns(
            variant, retention,
            {seed: Sheet(load_records(results_root, scale, variant, retention, seed=seed), WITHOUT_DRAWS) for seed in seeds},
        )
        for (variant, retention), seeds in training_seeds(results_root, scale).items()
        if len(seeds) > 1
    ]  # fmt: skip


def seeds_note(results_root: Path | str, scale: str, variant: str, retention: float | None, seed: int) -> str:
    """What Table 1 says about the seeds behind it."""
    found = training_seeds(results_root, scale)
    seeds = sorted({one for (name, share), own in found.items() if name == variant and retention in (None, share) for one in own})
    if len(seeds) > 1:
        return f"Training seeds: these figures are those of seed {seed}; means over {seed_words(seeds)} are in the table {NAME}."
    return f"Training seeds: one only ({seed}). Intervals are over examples; what training itself varies by is not in them."


def seed_table(runs: Sequence[SeedRuns], confidence: float = 0.95) -> Table:
    """Means over seeds with their intervals: a grid for each direction of each setting, then the mean Relative of each setting."""
    blocks = []
    for one in runs:
        tasks, metric = merged_tasks(list(one.sheets.values()))
        columns = tuple(task_head(task, metric[task]) for task in tasks)
        for direction in one.directions:
            rows = [(label(method, METHODS), _cells(one, direction, tasks, metric, method, confidence)) for method in one.methods()]
            relatives = [t_interval(list(one.relatives(direction, task, "acct").values()), confidence) for task in tasks]
            rows.append(("ACCT, Relative (%)", tuple(Cell(interval, factor=100.0) for interval in relatives)))
            blocks.append(Block(one.title(direction), columns, tuple(rows)))
        blocks.append(_mean_block(one, tasks, columns, confidence))
    caption = (
        f"Means over training seeds with {100 * confidence:g}% intervals over seeds (Student's t on the seeds' figures, each over all "
        "examples). F1 and accuracy in percent, perplexity lower is better. Rows that no training touches do not vary. "
        "Examples are the same for every seed; intervals over examples are in Table 1."
    )
    return Table(NAME, caption, tuple(blocks), ())


def _cells(
    runs: SeedRuns, direction: str, tasks: Sequence[str], metric: Mapping[str, str], method: str, confidence: float
) -> tuple[Cell, ...]:
    """A method's means; bold where the mean improves on that of Target Full."""
    cells = []
    for task in tasks:
        interval = t_interval(list(runs.values(direction, task, method).values()), confidence)
        full = t_interval(list(runs.values(direction, task, REFERENCE).values()), confidence).value
        low = lower_is_better(metric[task])
        better = method != REFERENCE and (interval.value < full if low else interval.value > full)
        cells.append(Cell(interval, 2 if low else 1, bool(better)))
    return tuple(cells)


def _mean_block(runs: SeedRuns, tasks: Sequence[str], columns: tuple[str, ...], confidence: float) -> Block:
    """Mean Relative over the directions that have every seed: one mean for each seed, then mean and interval over these."""
    seeds = sorted(runs.sheets)
    directions = [direction for direction in runs.directions if runs.seeds(direction) == seeds]
    rows = []
    for method in (method for method in runs.methods() if method != REFERENCE):
        cells = []
        for task in tasks:
            found = [runs.relatives(direction, task, method) for direction in directions]
            usable = [own for own in found if sorted(own) == seeds and np.isfinite(list(own.values())).all()]
            means = [float(np.mean([own[seed] for own in usable])) for seed in seeds] if usable else []
            cells.append(Cell(t_interval(means, confidence), factor=100.0) if means else NOTHING)
        rows.append((label(method, METHODS), tuple(cells)))
    setting = (f"{1 / runs.retention:g}x" if runs.retention != 0.25 else "") + (f" {runs.variant}" if runs.variant else "")
    title = f"Mean Relative over {len(directions)} direction(s) with every seed{', ' + setting.strip() if setting else ''} (%)"
    return Block(title, columns, tuple(rows))


def seeds_csv(runs: Sequence[SeedRuns], confidence: float = 0.95) -> str:
    """One line for each figure, columns exactly COLUMNS: `values` are those of `seeds`, in their order, separated by blanks."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)

    def shown(value: float) -> str:
        return f"{value:.6g}" if np.isfinite(value) else ""

    for one in runs:
        tasks, metric = merged_tasks(list(one.sheets.values()))
        for direction in one.directions:
            for task in tasks:
                for method in one.methods():
                    values = one.values(direction, task, method)
                    if not values:
                        continue
                    own = t_interval(list(values.values()), confidence)
                    relative = t_interval(list(one.relatives(direction, task, method).values()), confidence)
                    deviation = float(np.std(list(values.values()), ddof=1)) if len(values) > 1 else float("nan")
                    examples = len(one.sheets[next(iter(values))].records.only(direction=direction, task=task, method=method))
                    numbers = (own.value, own.lower, own.upper, deviation, relative.value, relative.lower, relative.upper)
                    writer.writerow([
                        direction, one.variant, f"{one.retention:g}", task, metric[task], method, " ".join(map(str, values)),
                        *map(shown, numbers), examples, " ".join(map(shown, values.values())),
                    ])  # fmt: skip
    return buffer.getvalue()
