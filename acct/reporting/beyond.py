"""What goes beyond the paper beside the paper's method: the variant `plus` (`conf/experiment/acct_plus.yaml`) with its controls (spec 11).

Two tables. `beyond` shows every row of the runs without a variant, and below them ACCT+ with the rows that its own training changes.
`nll_gap` reads the same records where text is scored instead of answered:

    NLL gap closed = (NLL_no context - NLL_method) / (NLL_no context - NLL_Target Full)

with mean token NLL over all tokens: 0 is no better than no context at all, 1 is as good as reading it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from acct.reporting.figures import NOTHING as NO_FIGURE
from acct.reporting.figures import REFERENCE, Figure, Sheet, lower_is_better
from acct.reporting.intervals import Sampled
from acct.reporting.names import METHODS, TASKS, direction_label, in_order, label
from acct.reporting.tables import NOTHING, Block, Cell, Table, figure_cell, lent_notes, merged_tasks, task_head

VARIANT = "plus"
OWN = ("acct", "bridge_only", "wrong_document", "zeros", "noise", "native_keys", "native_values")
"""Rows of a run that depend on how its Compiler was trained."""
SELECTED = ("native_kv", "random")
"""Rows that depend on rankings, counts and the budget, and on no Compiler."""
NOWHERE = "no_context"


def plus_label(method: str) -> str:
    """ "ACCT+", and "ACCT+, Bridge-only" for a row of its run."""
    return "ACCT+" if method == "acct" else f"ACCT+, {label(method, METHODS)}"


def own_rows(base: Sheet | None, plus: Sheet, direction: str) -> tuple[str, ...]:
    """Rows of a run that are not those of the run without a variant: the selection's too where its Cartographer is another one."""
    digests = [
        None if sheet is None else sheet.records.configurations.get(direction, {}).get("interface.cartographer") for sheet in (base, plus)
    ]
    return (*OWN, *SELECTED) if None not in digests and digests[0] != digests[1] else OWN


def beyond_table(base: Sheet | None, plus: Sheet, budgets: Mapping[str, Sheet] | None = None) -> Table:
    """ACCT+ under all rows of the runs without a variant, in the directions of either.

    A row that does not depend on how the Compiler was trained comes from the run without a variant, and from that of ACCT+ where it is
    missing there.

    Args:
        base: runs without a variant, None where there are none. budgets: ACCT+ at other compression ratios, by "2x" and so on.
    """
    budgets = budgets or {}
    sheets = [sheet for sheet in (base, plus, *budgets.values()) if sheet is not None]
    tasks, metric = merged_tasks(sheets)
    blocks, figures = [], list(base.all()) if base is not None else []
    for direction in dict.fromkeys(d for sheet in sheets for d in sheet.directions):
        here = base if base is not None and direction in base.directions else None
        there = plus if direction in plus.directions else None
        own = own_rows(base, plus, direction)
        others = {m for m in (there.methods if there is not None else ()) if m not in own}
        shared = in_order({*(here.methods if here is not None else ()), *others}, METHODS)
        rows = []
        for method in shared:
            given = (here, there if method not in own else None)
            options = [[figure_cell(one, direction, task, method) for one in given if one is not None] for task in tasks]
            rows.append((label(method, METHODS), tuple(next((cell for cell in cells if cell.defined), NOTHING) for cells in options)))
        if here is not None and "acct" in here.methods:
            rows += _ratios(here, direction, tasks, "ACCT")
        for method in (m for m in plus.methods if there is not None and m in own):
            rows.append((plus_label(method), tuple(figure_cell(plus, direction, task, method) for task in tasks)))
        if there is not None and "acct" in plus.methods:
            rows += _ratios(plus, direction, tasks, "ACCT+")
        for name, sheet in budgets.items():
            for method in (m for m in sheet.methods if direction in sheet.directions and m in (*OWN, *SELECTED)):
                written = plus_label(method) if method in own else label(method, METHODS)
                rows.append((f"{written}, {name}", tuple(figure_cell(sheet, direction, task, method) for task in tasks)))
        blocks.append(Block(direction_label(direction), tuple(task_head(task, metric[task]) for task in tasks), tuple(rows)))
    known = {(figure.direction, figure.task, figure.method) for figure in figures}
    for figure in plus.all():
        if figure.method in own_rows(base, plus, figure.direction):
            figures.append(replace(figure, method=f"{figure.method}_plus"))
        elif (figure.direction, figure.task, figure.method) not in known:
            figures.append(figure)
    for name, sheet in budgets.items():
        for figure in sheet.all():
            if figure.method in (*OWN, *SELECTED):
                own = figure.method in own_rows(base, plus, figure.direction)
                figures.append(replace(figure, method=f"{figure.method}{'_plus' if own else ''}_{name}"))
    caption = (
        "ACCT as in the paper and with what goes beyond it (ACCT+, trained apart), beside their controls. "
        f"F1 and accuracy in percent, perplexity lower is better; {100 * plus.bootstrap.confidence:g}% bootstrap intervals over examples. "
        "Bold: better than Target Full."
    )
    notes = (*_sizes([sheet for sheet in (base, plus) if sheet is not None]), *lent_notes({f"ACCT+ {k}": v for k, v in budgets.items()}))
    return Table("beyond", caption, tuple(blocks), tuple(figures), notes=notes)


def _ratios(sheet: Sheet, direction: str, tasks: list[str], name: str) -> list[tuple[str, tuple[Cell, ...]]]:
    """Relative and gap closed of a sheet's ACCT, in percent."""
    found = [sheet.figure(direction, task, "acct") for task in tasks]
    return [
        (f"{name}, {text} (%)", tuple(NOTHING if one is None else Cell(getattr(one, pick), factor=100.0) for one in found))
        for text, pick in (("Relative", "relative"), ("gap closed", "gap"))
    ]


def _sizes(sheets: list[Sheet]) -> tuple[str, ...]:
    """How many examples stand behind each task, by direction."""
    found: dict[str, dict[str, int]] = {}
    for figure in (one for sheet in sheets for one in sheet.all()):
        sizes = found.setdefault(figure.direction, {})
        sizes[figure.task] = max(figure.examples, sizes.get(figure.task, 0))
    return tuple(
        f"Examples, {direction_label(direction)}: " + ", ".join(f"{label(task, TASKS)} {count}" for task, count in sizes.items()) + "."
        for direction, sizes in found.items()
    )


def nll(sheet: Sheet, direction: str, task: str, method: str) -> Sampled | None:
    """Mean token NLL with its draws; None where the task scores no text or the row was not run."""
    found = sheet.sampled(direction, task, method) if lower_is_better(sheet.metric.get(task, "")) else None
    return None if found is None else Sampled(float(np.log(found.value)), np.log(found.draws))


def nll_gap_closed(sheet: Sheet, direction: str, task: str, method: str) -> Sampled | None:
    """The share of the NLL that reading the context saves; None where a row is missing, NaN where reading saves nothing."""
    own, floor, full = (nll(sheet, direction, task, name) for name in (method, NOWHERE, REFERENCE))
    if own is None or floor is None or full is None:
        return None
    width, ratio = floor - full, (floor - own) / (floor - full)
    return Sampled(ratio.value if width.value > 0 else float("nan"), np.where(width.draws > 0, ratio.draws, np.nan))


def nll_gap_table(sheets: Mapping[str, Sheet]) -> Table | None:
    """NLL and NLL gap closed of every row, by direction and task; None where no row of a sheet has all three figures.

    Args:
        sheets: by what is written behind a method's name: "" for runs without a variant, "ACCT+", "2x" and so on.
    """
    blocks: dict[tuple[str, str], list[tuple[str, tuple[Cell, ...]]]] = {}
    figures: list[Figure] = []
    for name, sheet in sheets.items():
        for direction, task in ((d, t) for d in sheet.directions for t in sheet.tasks):
            rows = blocks.setdefault((direction, task), [])
            for method in sheet.methods:
                closed = nll_gap_closed(sheet, direction, task, method)
                own_here = own_rows(sheets.get(""), sheet, direction)
                if closed is None or (name and method not in own_here and not method.startswith("ridge")):
                    continue
                written = label(method, METHODS) + (f" ({name})" if name else "")
                own, share = sheet.interval(nll(sheet, direction, task, method)), sheet.interval(closed)
                rows.append((written, (Cell(own, 3), Cell(share, factor=100.0))))
                known = f"{method}_{name.lower().replace('acct+', 'plus').replace(' ', '_')}" if name else method
                examples = len(sheet.records.only(direction=direction, task=task, method=method))
                figures.append(Figure(direction, task, "nll", known, own, NO_FIGURE, share, examples))
    columns = ("NLL per token", "NLL gap closed (%)")
    made = [Block(f"{direction_label(d)}, {label(t, TASKS)}", columns, tuple(rows)) for (d, t), rows in blocks.items() if rows]
    caption = (
        "Text scored by the target after what each row mounts: mean token NLL, and the share of what reading the context saves over no "
        "context at all, with bootstrap intervals over windows. NLL alone proves no transfer: read it beside the controls."
    )
    return Table("nll_gap", caption, tuple(made), tuple(figures)) if made else None
