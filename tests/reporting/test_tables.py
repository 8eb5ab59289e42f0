"""Tables from a stored record set whose figures are worked by hand in `stored.py`."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest

from acct.errors import ArtifactError, ConfigError
from acct.reporting.figures import Sheet
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import Records, as_frame
from acct.reporting.render import COLUMNS, latex, long_csv, markdown
from acct.reporting.summary import findings
from acct.reporting.tables import ablation_table, budget_table, table1
from acct.reporting.validity import WITHOUT_METHOD, judge
from acct.reporting.write import build_table1, write_appendix, write_tables
from tests.reporting.stored import F1, records, row, rows, store

BOOT = Bootstrap(500)


def sheet(*directions: str) -> Sheet:
    found = [one for direction in directions for one in rows(direction)]
    return Sheet(Records(as_frame(found), {d: {"retention": 0.25} for d in directions}, {d: {"commit": "abc"} for d in directions}), BOOT)


def test_figures_by_hand() -> None:
    one = sheet("a_to_b")
    acct = one.figure("a_to_b", "search_qa", "acct")
    assert (acct.figure.value, acct.relative.value, acct.gap.value, acct.examples) == pytest.approx((50.0, 2 / 3, 0.5, 4))
    assert acct.figure.lower <= 50.0 <= acct.figure.upper
    wiki = one.figure("a_to_b", "wikitext", "acct")
    assert (wiki.figure.value, wiki.relative.value) == pytest.approx((math.e**2, math.exp(-1)))
    assert wiki.gap.value == pytest.approx((math.e**2 - math.e**3) / (math.e - math.e**3))
    full = one.figure("a_to_b", "search_qa", "target_full")
    assert (full.relative.value, full.relative.lower, full.gap.value) == (1.0, 1.0, 1.0)
    assert one.figure("a_to_b", "wikitext", "random") is None


def test_long_csv_has_exactly_the_columns_and_empty_fields_for_what_is_undefined() -> None:
    lines = list(csv.DictReader(io.StringIO(long_csv(table1(sheet("a_to_b"))))))
    assert tuple(lines[0]) == COLUMNS and len(lines) == len(F1) + 3
    acct = next(line for line in lines if line["method"] == "acct" and line["task"] == "search_qa")
    assert (acct["direction"], acct["metric"], acct["value"], acct["relative"], acct["gap_closed"], acct["examples"]) == (
        "a_to_b", "f1", "50", "0.666667", "0.5", "4",
    )  # fmt: skip
    assert {line["method"] for line in lines} == set(F1)
    only = Sheet(Records(as_frame([row("a", "boolq", "acct", 0, score=1.0)]), {"a": {}}), BOOT)
    line = next(csv.DictReader(io.StringIO(long_csv(table1(only)))))
    assert line["relative"] == line["gap_closed"] == "" and line["value"] == "100"


def test_markdown_has_dashes_computed_bold_and_means_over_directions() -> None:
    text = markdown(build_table1(sheet("a_to_b", "b_to_a").records, BOOT))
    assert "at 4x compression" in text
    assert re.search(r"^\| ACCT \| 50\.0 \[[\d., ]+\] \| 7\.39 ", text, re.M)
    assert re.search(r"^\| Random \| 25\.0 \[[\d., ]+\] \| – \|$", text, re.M)
    assert "**" not in text.split("## Summary")[0]  # nothing beats Target Full here
    mean = text.split("Mean Relative over 2 direction(s)")[1]
    assert re.search(r"^\| ACCT \| 66\.7 \[", mean, re.M)
    assert "Provenance: commit abc" in text


def test_bold_marks_what_beats_target_full() -> None:
    found = [row("a", "boolq", m, i, score=s) for m, own in {"target_full": (1, 0), "acct": (1, 1)}.items() for i, s in enumerate(own)]
    found += [row("a", "wikitext", m, 0, nll_sum=n, tokens=2, score=1.0) for m, n in {"target_full": 4.0, "acct": 2.0}.items()]
    better = Sheet(Records(as_frame(found), {"a": {}}), BOOT)
    text = markdown(table1(better))
    assert "| ACCT | **100.0** [100.0, 100.0] | **2.72** " in text and "| Target Full | 50.0 " in text
    assert r"\textbf{100.0}" in latex(table1(better))


def test_latex_is_escaped_and_balanced() -> None:
    text = latex(build_table1(sheet("a_to_b").records, BOOT))
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    for line in body.splitlines():
        if line.endswith(r"\\"):
            assert line.count("&") == 2
    assert "(\\%)" in body and r"$\to$" in body and not re.search(r"(?<!\\)%", body)


def test_validity_of_good_and_bad_controls() -> None:
    found = [row("a", "boolq", m, i, score=float(s)) for m, own in {
        "target_full": [1] * 20, "no_context": [0] * 20, "acct": [1] * 18 + [0] * 2, "zeros": [0] * 20, "noise": [0] * 20,
        "wrong_document": [0] * 19 + [1],
    }.items() for i, s in enumerate(own)]  # fmt: skip
    good = judge(Sheet(Records(as_frame(found), {"a": {}}), BOOT))
    assert good.valid and good.lines()[0].startswith("VALID") and len(good.verdicts) == 3
    bad = [{**one, "score": 1.0} if one["method"] == "zeros" and one["example"] < "boolq/00015" else one for one in found]
    verdict = judge(Sheet(Records(as_frame(bad), {"a": {}}), BOOT))
    assert not verdict.valid and verdict.lines()[0].startswith("INVALID RUN") and "Zeros 75.0 against 90.0" in verdict.lines()[1]
    near = [{**one, "score": float(one["example"] < "boolq/00017")} if one["method"] == "noise" else one for one in found]
    assert [v.control for v in judge(Sheet(Records(as_frame(near), {"a": {}}), BOOT)).failures] == ["noise"]


def test_a_run_without_the_method_says_that_nothing_was_judged() -> None:
    found = [row("a", "boolq", method, i, score=1.0) for method in ("target_full", "native_kv") for i in range(9)]
    verdict = judge(Sheet(Records(as_frame(found), {"a": {}}), BOOT))
    assert not verdict.valid and verdict.lines() == ["INVALID RUN: its controls do not show it.", f"  {WITHOUT_METHOD}."]


def test_a_task_that_needs_no_context_cannot_judge() -> None:
    methods = ("target_full", "no_context", "acct", "zeros", "noise", "wrong_document")
    found = [row("a", "boolq", m, i, score=1.0) for m in methods for i in range(9)]
    verdict = judge(Sheet(Records(as_frame(found), {"a": {}}), BOOT))
    assert not verdict.valid and not verdict.failures and verdict.uninformative == ["a: BoolQ"]


def test_missing_controls_are_not_a_pass() -> None:
    found = [one for one in rows() if one["method"] != "noise"]
    verdict = judge(Sheet(Records(as_frame(found), {"a_to_b": {}}), BOOT))
    assert not verdict.valid and any("Noise was not run" in line for line in verdict.lines())
    with pytest.raises(ConfigError, match="margin"):
        judge(sheet("a_to_b"), margin=1.0)


def test_summary_by_hand() -> None:
    found = {finding.text: finding for finding in findings(sheet("a_to_b", "b_to_a"))}
    assert found["SearchQA: ACCT / Target Full"].figure.value == pytest.approx(2 / 3)
    assert found["SearchQA: ACCT / Target Full"].holds is False
    assert found["SearchQA: Random / ACCT"].figure.value == pytest.approx(0.5) and found["SearchQA: Random / ACCT"].holds
    assert found["SearchQA: ACCT - Bridge-only"].figure.value == pytest.approx(25.0)
    assert found["SearchQA: Native KV - Target Full"].figure.value == pytest.approx(-12.5)
    assert found["SearchQA: Zeros - No context"].holds is True
    assert "66.7% [" in found["SearchQA: ACCT / Target Full"].line() and "DOES NOT HOLD" in found["SearchQA: ACCT / Target Full"].line()
    few = Sheet(Records(as_frame([one for one in rows() if one["method"] in ("target_full", "acct")]), {"a_to_b": {}}), BOOT)
    assert [f.line() for f in findings(few) if f.text.endswith("Random / ACCT")] == ["SearchQA: Random / ACCT: – (not run)"]


def test_write_tables_is_a_pure_function_of_records(tmp_path: Path) -> None:
    store(tmp_path)
    store(tmp_path, "b_to_a")
    first = write_tables(tmp_path, "micro", bootstrap=BOOT)
    before = {path: path.read_bytes() for path in first.files}
    assert sorted(path.name for path in before) == [
        "significance.csv", "significance.md", "significance.tex", "table1.csv", "table1.json", "table1.md", "table1.tex",
    ]  # fmt: skip
    second = write_tables(tmp_path, "micro", bootstrap=BOOT)
    assert {path: path.read_bytes() for path in second.files} == before
    assert str(tmp_path) not in "".join(path.read_text() for path in first.files)
    copies = write_appendix(first, tmp_path / "appendix", "table1_micro")
    assert [path.name for path in copies] == ["table1_micro.md", "table1_micro.tex", "table1_micro.csv"]


def test_nothing_is_written_from_refused_records(tmp_path: Path) -> None:
    (store(tmp_path) / "provenance.json").unlink()
    with pytest.raises(ArtifactError):
        write_tables(tmp_path, "micro")
    assert not (tmp_path / "micro" / "tables").exists()


def test_tables_2_and_3(tmp_path: Path) -> None:
    one = sheet("a_to_b")
    budgets = budget_table({1.0: one, 0.25: one})
    assert [name for name, _ in budgets.blocks[0].rows] == ["Target Full", "ACCT 1x", "ACCT 4x"]
    assert {figure.method for figure in budgets.figures} == {"acct_1x", "acct_4x"}
    aware = [row("a_to_b", "search_qa", "snapkv_query_aware", i, score=1.0) for i in range(4)]
    more = Sheet(Records(as_frame([*rows("a_to_b"), *aware]), {"a_to_b": {}}, {"a_to_b": {}}), BOOT)
    budgets = budget_table({1.0: one, 0.25: more})
    assert [name for name, _ in budgets.blocks[0].rows][2:] == ["ACCT 4x", "SnapKV, with query 4x"]
    assert budgets.blocks[0].rows[3][1][0].interval.value == 100.0
    assert {figure.method for figure in budgets.figures} == {"acct_1x", "acct_4x", "snapkv_query_aware_4x"}
    ablations = ablation_table(one, {"uniform": one})
    assert [name for name, _ in ablations.blocks[0].rows][-1] == "Uniform, retrained"
    assert "uniform_retrained" in {figure.method for figure in ablations.figures}
    store(tmp_path)
    store(tmp_path, run="a_to_b-uniform", variant="uniform")
    store(tmp_path, run="a_to_b-r0.5", retention=0.5)
    written = {path.name: path.read_text() for path in write_tables(tmp_path, "micro", bootstrap=BOOT).files}
    assert "ACCT 2x" in written["table2.md"] and "Uniform, retrained" in written["table3.md"]
    assert written["table2.md"].count("records, sha256") == 2


def test_records_helper() -> None:
    assert records().directions == ["a_to_b"]


def test_what_was_not_run_is_a_row_of_dashes() -> None:
    few = Sheet(Records(as_frame([one for one in rows() if one["task"] == "search_qa"]), {"a_to_b": {}}), BOOT)
    block = budget_table({0.5: few, 0.25: sheet("a_to_b", "b_to_a")}, (1.0, 0.5, 0.25)).blocks
    assert [one.title for one in block] == ["a → b"]  # b_to_a was run at one retention only
    numbers = {name: [cell.number() for cell in cells] for name, cells in block[0].rows}
    assert numbers == {"Target Full": ["75.0", "2.72"], "ACCT 1x": ["–", "–"], "ACCT 2x": ["50.0", "–"], "ACCT 4x": ["50.0", "7.39"]}
    table = ablation_table(sheet("a_to_b", "b_to_a"), {"random": None, "uniform": few})
    assert [one.title for one in table.blocks] == ["a → b"]
    numbers = {name: [cell.number() for cell in cells] for name, cells in table.blocks[0].rows}
    assert numbers["Random, retrained"] == ["–", "–"] and numbers["Uniform, retrained"] == ["50.0", "–"]
    assert {figure.direction for figure in table.figures} == {"a_to_b"}


def test_other_tables_do_not_wait_for_table1(tmp_path: Path) -> None:
    for retention in (1.0, 0.5):
        store(tmp_path, run=f"a_to_b-r{retention:g}", retention=retention)
    store(tmp_path, run="a_to_b-random", variant="random")
    written = write_tables(tmp_path, "micro", bootstrap=BOOT)
    assert [path.name for path in written.files] == ["table2.md", "table2.tex", "table2.csv"] and written.table is None
    assert "Not run: 4x." in written.files[0].read_text()
    with pytest.raises(ArtifactError, match="no Table 1 to copy"):
        write_appendix(written, tmp_path / "appendix", "table1_micro")


def test_notes_of_table3_come_from_cards_and_records(tmp_path: Path) -> None:
    store(tmp_path)
    for variant, direction, examples in (("random", "a_to_b", 500), ("random", "b_to_a", 400), ("uniform", "a_to_b", 500)):
        run = store(tmp_path, direction, variant=variant, run=f"{direction}-{variant}").parent
        cards = {"compiler": {"built_from": {"training.compiler.examples": examples, "training.compiler.epochs": 4}}}
        if variant == "uniform":
            cards["cartographer"] = {"built_from": {"training.cartographer.examples": 5000}, "copied_from": "a_to_b"}
        for stage, card in cards.items():
            (run / stage).mkdir()
            (run / stage / "card.json").write_text(json.dumps(card))
    text = next(path for path in write_tables(tmp_path, "micro", bootstrap=BOOT).files if path.name == "table3.md").read_text()
    assert "- Random, retrained (a_to_b): compiler 500 examples x 4 epochs." in text
    assert "- Random, retrained (b_to_a): compiler 400 examples x 4 epochs." in text
    assert "- Uniform, retrained (a_to_b): cartographer copied from a_to_b; compiler 500 examples x 4 epochs." in text
    # F1 of four examples by four rows, perplexity of two by the two retrained ones, in the one direction that was run plainly
    assert "- Scored: 20 answers by the rows that replace a part, in 1 direction(s); the paper's protocol has 80,000." in text
