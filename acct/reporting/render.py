"""Markdown, LaTeX and CSV of a table."""

from __future__ import annotations

import csv
import io

import numpy as np

from acct.reporting.tables import DASH, Block, Cell, Table, Text

TITLES = {"nll_gap": "NLL gap"}
"""Headings that are not a table's name with a capital."""
GRID = ("block", "row", "column", "value")
COLUMNS = ("direction", "task", "metric", "method", "value", "lower", "upper", "relative", "gap_closed", "examples")
_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "→": r"$\to$", DASH: "--", "±": r"$\pm$", "≥": r"$\ge$"}


def markdown(table: Table) -> str:
    """GitHub Markdown: one grid for each block, notes, and the provenance line."""
    parts = [f"# {TITLES.get(table.name, table.name.capitalize())}", table.caption]
    for block in table.blocks:
        head = ["| " + " | ".join(("", *block.columns)) + " |", "|" + "|".join(["---", *["---:"] * len(block.columns)]) + "|"]
        rows = ["| " + " | ".join((name, *(_markdown_cell(cell) for cell in cells))) + " |" for name, cells in block.rows]
        parts.append("\n".join([f"## {block.title}", "", *head, *rows]))
    parts += ["\n".join(table.notes)] if table.notes else []
    parts += [table.provenance] if table.provenance else []
    return "\n\n".join(parts) + "\n"


def _markdown_cell(cell: Cell | Text) -> str:
    number = f"**{cell.number()}**" if cell.bold and cell.defined else cell.number()
    return f"{number} {cell.bounds()}".rstrip()


def latex(table: Table) -> str:
    """A LaTeX table (booktabs), one part for each block; intervals are left to the CSV and the Markdown."""
    width = max((len(block.columns) for block in table.blocks), default=0)
    lines = [
        f"% {table.provenance}", r"\begin{table*}[t]", r"\centering\small",
        rf"\caption{{{_escape(table.caption)}}}", rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{l{'r' * width}}}", r"\toprule",
    ]  # fmt: skip
    for number, block in enumerate(table.blocks):
        if number:
            lines.append(r"\midrule")
        lines += _latex_block(block, width)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table*}"]) + "\n"


def _latex_block(block: Block, width: int) -> list[str]:
    filler = [""] * (width - len(block.columns))
    lines = [" & ".join([rf"\textit{{{_escape(block.title)}}}", *map(_escape, block.columns), *filler]) + r" \\", r"\midrule"]
    for name, cells in block.rows:
        numbers = [rf"\textbf{{{cell.number()}}}" if cell.bold and cell.defined else _escape(cell.number()) for cell in cells]
        lines.append(" & ".join([_escape(name), *numbers, *filler]) + r" \\")
    return lines


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def long_csv(table: Table) -> str:
    """One line for each figure, columns exactly COLUMNS; an undefined number is an empty field. Provenance stays in the other two files."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for figure in table.figures:
        interval = figure.figure
        numbers = (interval.value, interval.lower, interval.upper, figure.relative.value, figure.gap.value)
        shown = [f"{number:.6g}" if np.isfinite(number) else "" for number in numbers]
        writer.writerow([figure.direction, figure.task, figure.metric, figure.method, *shown, figure.examples])
    return buffer.getvalue()


def grid_csv(table: Table) -> str:
    """One line for each cell as it is printed, columns exactly GRID: for tables whose cells are no figures of records."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(GRID)
    for block in table.blocks:
        for name, cells in block.rows:
            writer.writerows((block.title, name, column, cell.number()) for column, cell in zip(block.columns, cells))
    return buffer.getvalue()


def rendered(table: Table) -> dict[str, str]:
    """The table in all three formats, by file ending; a table with figures gets `long_csv`, another one `grid_csv`."""
    return {".md": markdown(table), ".tex": latex(table), ".csv": long_csv(table) if table.figures else grid_csv(table)}
