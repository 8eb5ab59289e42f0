"""The appendix's tables against counts worked by hand, and against the configuration that they say they read."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from acct.cli.main import main
from acct.reporting.intervals import Bootstrap
from acct.reporting.render import GRID, rendered
from acct.reporting.tables import Block, Table, Text
from appendix_tables import additional_pairs, data_sets
from appendix_tables.ablations import rows_of, trained_again
from appendix_tables.inputs import Inputs
from appendix_tables.registry import TABLES, write_appendix_tables
from appendix_tables.stated import compared
from tests.reporting.stored import rows, store


def inputs(*overrides: str) -> Inputs:
    return Inputs(overrides, Bootstrap(resamples=20))


def cells(table: Table, block: int = 0) -> dict[str, dict[str, str]]:
    """Printed cells of a block by row and column."""
    one = table.blocks[block]
    return {name: dict(zip(one.columns, (cell.number() for cell in found))) for name, found in one.rows}


@pytest.fixture(scope="module")
def paper() -> Inputs:
    return inputs("scale=paper")


def test_geometry_and_widths_of_the_six_directions(paper: Inputs) -> None:
    table = TABLES["table5"](paper)
    assert len(table.blocks[0].rows) == 6
    models, interface = cells(table), cells(table, 1)
    assert models["qwen25 7b → 32b"] == {
        "L_S": "28", "H_S": "4", "d_S": "128", "D_S": "3,584", "L_T": "64", "H_T": "8", "d_T": "128", "D_T": "5,120", "P": "512",
    }  # fmt: skip
    # (3584 + 5120) / 2 / 8 = 544; 544 / 4 = 136 -> 160; 8 x 544 / 3 = 1450.7 -> 1472; a third block from 5120
    assert interface["qwen25 7b → 32b"] == {
        "w_M": "544", "d_M": "160", "c_M": "32", "w_W": "544", "heads": "17", "f_W": "1,472", "m_W": "64", "D": "3",
    }  # fmt: skip
    assert interface["qwen3 4b → 8b"]["w_W"] == "416" and interface["qwen3 4b → 8b"]["D"] == "2"
    notes = "\n".join(table.notes)
    assert notes.count("agrees") == 3 and "DISAGREES" not in notes


def test_counts_of_a_direction_by_hand(paper: Inputs) -> None:
    counts, parts = cells(TABLES["table6"](paper)), cells(TABLES["table7"](paper))
    name = "qwen3 4b → 8b"
    assert counts[name]["Allocator P_R"] == "288"
    bridge = 2 * 288 * (128 + 1) * 128
    assert parts[name]["Bridge P_B"] == f"{bridge:,}"
    number = {key: int(value.replace(",", "")) for key, value in {**counts[name], **parts[name]}.items() if "%" not in key}
    assert number["Compiler P_W + P_B"] == number["Residual P_W"] + bridge
    assert number["Gradient-optimised P_M + P_R + P_W"] == number["Cartographer P_M"] + 288 + number["Residual P_W"]
    assert number["Total"] == number["Gradient-optimised P_M + P_R + P_W"] + bridge
    assert float(counts[name]["of the target (%)"]) == pytest.approx(100 * number["Total"] / 8_190_735_360, abs=0.005)


def test_closed_forms_equal_modules_on_the_meta_device(paper: Inputs) -> None:
    assert all(pair.counts == pair.instantiated for pair in paper.pairs)
    assert "6 of 6 directions agree" in TABLES["table6"](paper).notes[0]


def test_the_schedule_is_read_from_the_configuration() -> None:
    table = TABLES["table4"](inputs("scale=paper", "training.allocator.examples=12", "training.allocator.batch=5"))
    stages = cells(table)
    assert stages["examples"] == {"Cartographer": "5,000", "Allocator": "12", "Compiler": "500"}
    assert stages["epochs"]["Compiler"] == "4"
    assert stages["steps, computed"] == {"Cartographer": "625", "Allocator": "3", "Compiler": "500"}
    assert "learning rate [ours]" in stages and "examples [ours]" not in stages
    groups = {block.title: dict(block.rows) for block in table.blocks}
    assert groups["Budget"]["tail tokens"][0].number() == "32" and groups["Compiler"]["key scale"][0].number() == "0.0001"


def test_the_data_set_table_sums_to_the_papers_examples(paper: Inputs) -> None:
    table = TABLES["data_sets"](paper)
    found = cells(table)
    assert found["PubMedQA"]["examples"] == "500" and found["all"]["examples"] == "10,000" and len(found) == 12
    assert sum(data_sets.examples(paper).values()) == 10_000 and "agrees" in table.notes[-1]
    assert "invented world" in TABLES["data_sets"](inputs("scale=micro")).notes[-1]


def test_what_an_ablation_trains_again(paper: Inputs) -> None:
    again = {row.name: row.again for row in rows_of(paper)}
    assert again == {
        "ACCT": ("cartographer", "allocator", "compiler"), "Random, retrained": ("allocator", "compiler"),
        "Uniform, retrained": ("compiler",), "Bridge-only": (), "Native KV": (),
    }  # fmt: skip
    other = paper.composed("experiment=table3_uniform", "cartographer.dropout=0.1")  # no longer the base run's ranking
    assert trained_again(other, paper.config) == ("cartographer", "compiler")
    assert "80,000" in TABLES["ablations"](paper).notes[-1] and "agrees" in TABLES["ablations"](paper).notes[-1]


def test_scored_examples_are_counted_in_the_records(tmp_path: Path) -> None:
    store(tmp_path, found=[row for row in rows() if row["method"] != "native_kv"])
    found = cells(TABLES["ablations"](inputs("scale=micro", f"paths.results={tmp_path}")))
    assert found["ACCT"]["scored (records)"] == "6" and found["Bridge-only"]["scored (records)"] == "4"
    assert found["Native KV"]["scored (records)"] == "–" == found["Uniform, retrained"]["scored (records)"]


def test_additional_pairs_show_what_was_run_and_name_the_rest(tmp_path: Path) -> None:
    for name in ("qwen3_06b_to_4b", "qwen3_4b_to_8b"):
        store(tmp_path, name)
    (tmp_path / "micro").rename(tmp_path / "paper")
    table = TABLES["additional_pairs"](inputs("scale=paper", f"paths.results={tmp_path}"))
    overview = cells(table)
    assert overview["qwen3 06b → 4b"]["records"] == "yes" and overview["qwen3 14b → 4b"]["records"] == "not run"
    assert [block.title for block in table.blocks[:2]] == ["Directions", "qwen3 06b → 4b"]
    assert {figure.direction for figure in table.figures} == {"qwen3_06b_to_4b"}
    assert cells(table, 1)["ACCT"]["SearchQA (F1)"] == "50.0"
    assert "qwen3_14b_to_4b" in table.notes[0] and "qwen3_06b_to_4b" not in table.notes[0] and "records, sha256" in table.provenance
    assert additional_pairs.found_records(inputs("scale=paper", f"paths.results={tmp_path / 'empty'}")) is None


def test_a_comparison_is_computed() -> None:
    assert compared("x", 1, 1).endswith("agrees.") and "DISAGREES" in compared("x", 1, 2)


def test_every_table_is_written_in_three_formats_with_provenance(tmp_path: Path) -> None:
    files = write_appendix_tables(inputs("scale=micro", f"paths.results={tmp_path}"), tmp_path, ["table6", "data_sets"])
    assert [path.name for path in files] == [f"appendix_{n}.{e}" for n in ("table6", "data_sets") for e in ("md", "tex", "csv")]
    assert "Provenance: commit" in files[0].read_text() and files[1].read_text().startswith("% Provenance")


def test_a_grid_as_csv_and_words_in_the_other_formats() -> None:
    text = rendered(Table("t", "c", (Block("b", ("x", "y"), (("r, 1", (Text("1,000"), Text("", bold=True))),)),), ()))
    assert list(csv.reader(io.StringIO(text[".csv"]))) == [list(GRID), ["b", "r, 1", "x", "1,000"], ["b", "r, 1", "y", "–"]]
    assert "| r, 1 | 1,000 | – |" in text[".md"] and r"r, 1 & 1,000 & -- \\" in text[".tex"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["appendix", "table4", "scale=paper", f"paths.tables={tmp_path}"]) == 0
    assert "# Table4" in capsys.readouterr().out and (tmp_path / "appendix_table4.csv").is_file()
    for arguments, message in ((["tabel5"], "Did you mean 'table5'?"), (["table5", "-m"], "got -m"), (["budget.retention=4"], "got 4")):
        assert main(["appendix", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["table5", "table6", "table7"])
def test_the_copies_that_are_kept_are_what_is_rendered_now(paper: Inputs, name: str) -> None:
    folder = Path(__file__).resolve().parents[2] / "appendix_tables/rendered/paper"
    for ending, text in rendered(TABLES[name](paper)).items():
        kept = (folder / f"appendix_{name}{ending}").read_text(encoding="utf-8")
        lines, now = ([line for line in one.splitlines() if "Provenance: " not in line] for one in (kept, text))
        assert lines == now, f"acct appendix {name} scale=paper paths.tables=appendix_tables/rendered/paper"
