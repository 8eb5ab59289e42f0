"""Appendix I: Table 1 over the additional directions, as far as records are there; what is missing is named with its command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from acct.reporting.figures import Sheet
from acct.reporting.names import direction_label
from acct.reporting.records import Records, load_records, settings
from acct.reporting.tables import Block, Table, Text, table1
from acct.reporting.write import provenance_line
from appendix_tables.inputs import Inputs

COLUMNS = ("source", "target", "P", "source / target parameters", "records")


def found_records(inputs: Inputs) -> Records | None:
    """Records of the additional directions at the configured retention and variant; None where there are none."""
    config = inputs.config
    root, retention, variant = Path(config.paths.results), config.budget.retention, config.paths.variant
    if (variant, retention) not in settings(root, config.scale):
        return None
    every = load_records(root, config.scale, variant, retention)
    names = [name for name in inputs.additional if name in every.directions]
    if not names:
        return None
    frame = every.frame[every.frame["direction"].isin(names)].reset_index(drop=True)
    return Records(frame, {name: every.configurations[name] for name in names}, {name: every.provenance[name] for name in names})


def table(inputs: Inputs) -> Table:
    """The directions with their geometry, then a grid for each that was run."""
    pairs = [inputs.pair(name) for name in inputs.additional]
    records = found_records(inputs)
    run = records.directions if records is not None else []
    rows = []
    for pair in pairs:
        ratio = f"{pair.source.parameters / pair.target.parameters:.2f}"
        words = (pair.source.name, pair.target.name, f"{pair.geometry.units:,}", ratio, "yes" if pair.name in run else "not run")
        rows.append((direction_label(pair.name), tuple(map(Text, words))))
    overview = Block("Directions", COLUMNS, tuple(rows))
    scale = inputs.config.scale
    notes = [] if pairs else [f"scale={scale} has no directions beyond the six: both models of each of its families are used."]
    missing = [pair.name for pair in pairs if pair.name not in run]
    if missing:
        chosen = f"direction={','.join(missing)} scale={scale}"
        notes.append(f"Missing: {', '.join(missing)}. Run `acct train -m {chosen}`, then `acct evaluate -m {chosen}`.")
    if pairs:
        notes.append("The paper's text names the sources of two of these; that the others read 1.7B, 4B and 8B is our choice.")
    caption = f"Additional pairs (scale={scale})."
    if records is None:
        digests = [[pair.name, pair.source.digest, pair.target.digest] for pair in pairs]
        line = inputs.provenance(digests, f"model configurations of scale={scale}")
        return Table("additional_pairs", caption, (overview,), (), tuple(notes), line)
    filled = table1(Sheet(records, inputs.bootstrap))
    blocks = (overview, *filled.blocks)
    return replace(filled, name="additional_pairs", caption=caption, blocks=blocks, notes=tuple(notes), provenance=provenance_line(records))
