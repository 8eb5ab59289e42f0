"""Table 6: exact parameters of each module of the interface (paper E.2), closed forms against modules on the meta device."""

from __future__ import annotations

from acct.reporting.names import direction_label
from acct.reporting.tables import Block, Table, Text
from appendix_tables.inputs import DirectedPair, Inputs
from appendix_tables.stated import BODIES

COLUMNS = ("Cartographer P_M", "Allocator P_R", "Compiler P_W + P_B", "Total", "of the target (%)")


def row(pair: DirectedPair) -> tuple[Text, ...]:
    """Counts, and the total against the target's own parameters."""
    counts = pair.counts
    numbers = tuple(Text(f"{value:,}") for value in (counts.cartographer, counts.allocator, counts.compiler, counts.total))
    return (*numbers, Text(f"{100 * counts.total / pair.target.parameters:.2f}"))


def table(inputs: Inputs) -> Table:
    """One row for each direction."""
    block = Block("Parameters", COLUMNS, tuple((direction_label(pair.name), row(pair)) for pair in inputs.pairs))
    caption = "Exact interface parameter counts; the Compiler includes the fitted, frozen Bridge."
    return Table("table6", caption, (block,), (), tuple(check_notes(inputs)), inputs.geometry_provenance())


def check_notes(inputs: Inputs) -> list[str]:
    """Whether closed forms and instantiated modules agree, and whether the limits hold: each computed."""
    pairs = inputs.pairs
    differing = [pair for pair in pairs if pair.counts != pair.instantiated]
    agreeing = f"{len(pairs) - len(differing)} of {len(pairs)} directions agree"
    found = [f"- Closed forms against modules instantiated on the meta device: {agreeing}."]
    found += [f"- **DISAGREES** {pair.name}: closed form {pair.counts}, instantiated {pair.instantiated}." for pair in differing]
    for name, limit, values in (
        ("C_M", pairs[0].config.cartographer.limit, [pair.counts.cartographer for pair in pairs]),
        ("C_W", pairs[0].config.compiler.limit, [pair.counts.residual for pair in pairs]),
    ):
        outcome = "within" if max(values) <= limit else "**ABOVE**"
        found.append(f"- Limit {name} = {limit:,}: the largest count is {max(values):,}, {outcome} it.")
    if inputs.config.scale == "paper":
        found += ["", BODIES]
    return found
