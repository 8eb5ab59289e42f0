"""ACCT+ beside ACCT, and NLL gap closed, from the records of `stored.py`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from acct.reporting.beyond import beyond_table, nll_gap_closed, nll_gap_table
from acct.reporting.figures import Sheet
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import Records, as_frame
from acct.reporting.write import write_tables
from tests.reporting.stored import TOKENS, row, rows, store

BOOT = Bootstrap(500)
NOWHERE = [row("a_to_b", "wikitext", "no_context", i, nll_sum=4.0 * n, tokens=n, score=2.0) for i, n in enumerate(TOKENS)]


def sheet(found: list[dict], *directions: str) -> Sheet:
    return Sheet(Records(as_frame(found), {d: {"retention": 0.25} for d in directions or ("a_to_b",)}), BOOT)


def plus(direction: str = "a_to_b") -> list[dict]:
    """The same run with every ACCT score twice as good, up to 1."""
    return [{**one, "score": min(1.0, 2 * one["score"])} if one["method"] == "acct" else one for one in rows(direction)]


def test_nll_gap_closed_by_hand() -> None:
    # NLL a token: Target Full 1, ACCT 2, Source Full 3, no context 4
    found = sheet([*rows(), *NOWHERE])
    values = {m: nll_gap_closed(found, "a_to_b", "wikitext", m) for m in ("target_full", "acct", "source_full", "no_context")}
    assert {m: one.value for m, one in values.items() if one} == pytest.approx(
        {"target_full": 1.0, "acct": 2 / 3, "source_full": 1 / 3, "no_context": 0.0}
    )
    assert np.allclose(values["target_full"].draws, 1.0) and np.allclose(values["no_context"].draws, 0.0)


def test_nll_gap_is_undefined_where_reading_saves_nothing_and_absent_where_a_row_is() -> None:
    worse = [{**one, "nll_sum": one["nll_sum"] / 100} for one in NOWHERE]
    assert math.isnan(nll_gap_closed(sheet([*rows(), *worse]), "a_to_b", "wikitext", "acct").value)
    assert nll_gap_closed(sheet(rows()), "a_to_b", "wikitext", "acct") is None
    assert nll_gap_closed(sheet([*rows(), *NOWHERE]), "a_to_b", "search_qa", "acct") is None  # answers are no text that is scored
    assert nll_gap_table({"": sheet(rows())}) is None


def test_nll_gap_table_names_the_run_of_a_row_and_shows_references_once() -> None:
    table = nll_gap_table({"": sheet([*rows(), *NOWHERE]), "2x": sheet([*rows(), *NOWHERE])})
    (block,) = table.blocks
    assert block.title == "a → b, WikiText2"
    shown = {name: [cell.number() for cell in cells] for name, cells in block.rows}
    line = next(one for one in table.figures if one.method == "acct_2x")
    assert (line.metric, line.examples, line.figure.value, line.gap.value) == ("nll", 2, 2.0, pytest.approx(2 / 3))
    assert shown["ACCT"] == ["2.000", "66.7"] and shown["ACCT (2x)"] == ["2.000", "66.7"] and "Target Full (2x)" not in shown


def test_beyond_has_both_acct_rows_with_their_own_controls() -> None:
    table = beyond_table(sheet(rows()), sheet(plus()))
    names = [name for name, _ in table.blocks[0].rows]
    assert names.index("ACCT") < names.index("ACCT, Relative (%)") < names.index("ACCT+") < names.index("ACCT+, Wrong document")
    cells = {name: cells[0].number() for name, cells in table.blocks[0].rows}
    assert (cells["ACCT"], cells["ACCT+"], cells["ACCT+, Relative (%)"]) == ("50.0", "75.0", "100.0")
    assert "ACCT+, Target Full" not in names
    assert {"acct", "acct_plus"} <= {figure.method for figure in table.figures}
    assert table.notes == ("Examples, a → b: SearchQA 4, WikiText2 2.",)
    alone = beyond_table(None, sheet(plus()))
    names = [name for name, _ in alone.blocks[0].rows]
    assert names[0] == "Target Full" and "ACCT" not in names and "ACCT+" in names and "Bridge-only" not in names
    assert {"target_full", "acct_plus", "native_kv"} <= {figure.method for figure in alone.figures}


def test_a_row_that_training_does_not_change_may_come_from_either_run() -> None:
    few = [one for one in rows() if (one["method"], one["task"]) != ("native_kv", "search_qa") and one["task"] == "search_qa"]
    table = beyond_table(sheet(few), sheet(plus()))
    cells = {name: [cell.number() for cell in cells] for name, cells in table.blocks[0].rows}
    assert cells["Native KV"] == ["62.5", "–"] and cells["Source Full"] == ["25.0", "20.09"]
    shown = [(figure.task, figure.method) for figure in table.figures]
    assert len(shown) == len(set(shown)) and ("search_qa", "native_kv") in shown and ("wikitext", "source_full") in shown


def test_written_where_the_variant_was_evaluated_and_kept_out_of_table3(tmp_path: Path) -> None:
    store(tmp_path, found=[*rows(), *NOWHERE])
    store(tmp_path, run="a_to_b-plus", variant="plus", found=[*plus(), *NOWHERE])
    texts = {path.name: path.read_text() for path in write_tables(tmp_path, "micro", bootstrap=BOOT).files}
    assert "| ACCT+ | 75.0" in texts["beyond.md"] and "acct_plus" in texts["beyond.csv"] and r"\begin{table*}" in texts["beyond.tex"]
    assert texts["nll_gap.md"].startswith("# NLL gap\n") and "| ACCT (ACCT+) | 2.000" in texts["nll_gap.md"] and "table3.md" not in texts
    assert texts["beyond.md"].count("records, sha256") == 2


def test_another_ranking_has_native_states_of_its_own() -> None:
    base, other = sheet(rows()), sheet(plus())
    for one, digest in ((base, "a"), (other, "b")):
        one.records.configurations["a_to_b"]["interface.cartographer"] = digest
    table = beyond_table(base, other, {"2x": other})
    names = [name for name, _ in table.blocks[0].rows]
    assert {"Native KV", "ACCT+, Native KV", "ACCT+, Native KV, 2x"} <= set(names)
    assert {"native_kv", "native_kv_plus", "native_kv_plus_2x"} <= {figure.method for figure in table.figures}
    other.records.configurations["a_to_b"]["interface.cartographer"] = "a"
    same = [name for name, _ in beyond_table(base, other, {"2x": other}).blocks[0].rows]
    assert "Native KV, 2x" in same and not any(name.startswith("ACCT+, Native KV") for name in same)
