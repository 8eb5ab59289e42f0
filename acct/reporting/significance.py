"""ACCT against other rows of Table 1, example by example: McNemar for accuracies, paired bootstrap differences for everything (spec 8)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from acct.reporting.figures import Sheet, lower_is_better
from acct.reporting.intervals import Interval
from acct.reporting.mcnemar import Paired, holm, paired
from acct.reporting.names import METHODS, direction_label, label
from acct.reporting.tables import DASH, NOTHING, Block, Cell, Table, Text, task_head

NAME = "significance"
OTHERS = ("target_full", "random", "bridge_only", "native_kv", "no_context")
COLUMNS = (
    "direction", "task", "metric", "method", "other", "examples", "method_value", "other_value", "difference", "lower", "upper",
    "method_only", "other_only", "p_value", "p_holm",
)  # fmt: skip
HEADS = ("ACCT", "other", "better by", "n", "b", "c", "p", "p (Holm)")


@dataclass(frozen=True)
class Comparison:
    """A method against another on one task of one direction.

    Attributes:
        method_value, other_value: figures, in percent or as perplexity. difference: how much better the method is, in the same unit.
        counts: discordant examples of an accuracy, None otherwise. adjusted: p after Holm over the table, None where there is no p.
    """

    direction: str
    task: str
    metric: str
    method: str
    other: str
    examples: int
    method_value: float
    other_value: float
    difference: Interval
    counts: Paired | None = None
    adjusted: float | None = None


def compare(sheet: Sheet, method: str = "acct", others: Sequence[str] = OTHERS) -> list[Comparison]:
    """Every comparison that the records allow, by direction, task and other method; p values adjusted over all of them together.

    Raises:
        ArtifactError: a score of an accuracy task is neither 0 nor 1.
    """
    found: list[tuple[Comparison, Paired | None]] = []
    for direction in sheet.directions:
        for task in sheet.tasks:
            own, scores = sheet.sampled(direction, task, method), sheet.scores(direction, task, method)
            for other in others:
                their, theirs = sheet.sampled(direction, task, other), sheet.scores(direction, task, other)
                if own is None or their is None or scores is None or theirs is None:
                    continue
                metric = sheet.metric[task]
                counts = paired(scores, theirs) if metric == "accuracy" else None
                difference = sheet.interval(sheet.difference(direction, task, method, other))
                one = Comparison(direction, task, metric, method, other, len(scores), own.value, their.value, difference)
                found.append((one, counts))
    adjusted = iter(holm([counts.p_value for _, counts in found if counts is not None]))
    return [one if counts is None else replace(one, counts=counts, adjusted=next(adjusted)) for one, counts in found]


def significance_table(sheet: Sheet, comparisons: Sequence[Comparison]) -> Table:
    """The comparisons as a grid for each direction."""
    tests = sum(one.counts is not None for one in comparisons)
    blocks = []
    for direction in dict.fromkeys(one.direction for one in comparisons):
        own = [one for one in comparisons if one.direction == direction]
        rows = tuple((f"{task_head(one.task, one.metric)}, against {label(one.other, METHODS)}", _cells(one)) for one in own)
        blocks.append(Block(direction_label(direction), HEADS, rows))
    caption = (
        "ACCT against other rows of Table 1 on the same examples. Better by: paired difference, above zero is better for ACCT, with "
        f"its {100 * sheet.bootstrap.confidence:g}% paired bootstrap interval over examples. b: examples that only ACCT gets right, c: "
        "that only the other row does; p of McNemar's exact test, two sided, for accuracies; p (Holm) adjusted over the "
        f"{tests} tests of this table. Random, Bridge-only and Native KV are those that are not retrained."
    )
    return Table(NAME, caption, tuple(blocks), ())


def _cells(one: Comparison) -> tuple[Cell | Text, ...]:
    decimals = 2 if lower_is_better(one.metric) else 1
    nan = float("nan")
    values = tuple(Cell(Interval(value, nan, nan), decimals) for value in (one.method_value, one.other_value))
    start: tuple[Cell | Text, ...] = (*values, Cell(one.difference, decimals), Text(str(one.examples)))
    if one.counts is None or one.adjusted is None:
        return (*start, NOTHING, NOTHING, NOTHING, NOTHING)
    counts = one.counts
    return (*start, Text(str(counts.first_only)), Text(str(counts.second_only)), Text(p_text(counts.p_value)), Text(p_text(one.adjusted)))


def p_text(value: float) -> str:
    """A p value with three decimals, and as a bound below them."""
    return DASH if not np.isfinite(value) else "<0.001" if value < 0.001 else f"{value:.3f}"


def significance_csv(comparisons: Sequence[Comparison]) -> str:
    """One line for each comparison, columns exactly COLUMNS; what does not apply is an empty field."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in comparisons:
        counts = one.counts
        tested = ("", "", "", "") if counts is None else (counts.first_only, counts.second_only, counts.p_value, one.adjusted)
        numbers = (one.method_value, one.other_value, one.difference.value, one.difference.lower, one.difference.upper, *tested)
        shown = [f"{value:.6g}" if value != "" and np.isfinite(value) else "" for value in numbers]
        writer.writerow([one.direction, one.task, one.metric, one.method, one.other, one.examples, *shown])
    return buffer.getvalue()


def summary_line(comparisons: Sequence[Comparison], level: float = 0.05) -> str:
    """One line for a terminal: how many of the tests fall below a level after adjustment."""
    tested = [one.adjusted for one in comparisons if one.adjusted is not None]
    below = sum(value < level for value in tested)
    return f"significance: {len(comparisons)} paired comparisons, {below} of {len(tested)} McNemar tests with p (Holm) < {level:g}"
