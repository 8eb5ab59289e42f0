"""Table 7: the Compiler's parts, and what gradients optimise in the whole interface (paper E.2)."""

from __future__ import annotations

from acct.reporting.names import direction_label
from acct.reporting.tables import Block, Table, Text
from appendix_tables.inputs import Inputs
from appendix_tables.table6_parameters import check_notes

COLUMNS = ("Residual P_W", "Bridge P_B", "Compiler P_W + P_B", "Gradient-optimised P_M + P_R + P_W")


def table(inputs: Inputs) -> Table:
    """One row for each direction."""
    rows = []
    for pair in inputs.pairs:
        counts = pair.counts
        numbers = (counts.residual, counts.bridge, counts.compiler, counts.gradient_optimised)
        rows.append((direction_label(pair.name), tuple(Text(f"{value:,}") for value in numbers)))
    caption = "Decomposition of the Compiler, and gradient-optimised parameters of the entire interface."
    return Table(
        "table7", caption, (Block("Parameters", COLUMNS, tuple(rows)),), (), tuple(check_notes(inputs)), inputs.geometry_provenance()
    )
