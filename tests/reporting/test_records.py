"""What records are refused, each with the reason named (case 18)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from acct.errors import ArtifactError
from acct.reporting.figures import Sheet
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import Records, as_frame, load_records, read_records, settings, unfinished
from tests.reporting.stored import row, rows, store


def test_round_trip(tmp_path: Path) -> None:
    records = read_records(store(tmp_path))
    assert len(records.frame) == 10 * 4 + 3 * 2 and records.directions == ["a_to_b"]
    wikitext = records.only(task="wikitext", method="acct")
    assert wikitext["nll_sum"].tolist() == [5.0, 15.0] and records.only(method="random")["nll_sum"].isna().all()


@pytest.mark.parametrize("name", ["provenance.json", "configuration.json", "records.parquet"])
def test_folder_without_a_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = store(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ArtifactError, match=f"lacks {name}"):
        read_records(folder)


def test_empty_folder_is_refused_not_averaged_to_nan(tmp_path: Path) -> None:
    folder = store(tmp_path, found=[])
    with pytest.raises(ArtifactError, match="holds no records"):
        read_records(folder)
    with pytest.raises(ArtifactError, match="no evaluated run"):
        load_records(tmp_path, "paper")


def test_missing_row_is_named(tmp_path: Path) -> None:
    store(tmp_path, found=[one for one in rows() if one["method"] != "target_full"])
    with pytest.raises(ArtifactError, match=r"lacks the row\(s\) of target_full"):
        load_records(tmp_path, "micro", methods=["target_full"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"direction": "c_to_d"}, "direction is a_to_b, c_to_d"), ({"version": 2}, "version of search_qa is 1 and 2"),
        ({"metric": "accuracy"}, "metric of search_qa is accuracy and f1"), ({"score": 1.5}, "out of range"),
        ({"score": math.nan}, "out of range"), ({"example": "search_qa/00001"}, "more than once"),
        ({"prompt_hash": "f" * 16}, "prompt_hash of search_qa/00000 is 0000000000000000 and ffffffffffffffff"),
        ({"method": "bridge_olny"}, "unknown method 'bridge_olny'.*Did you mean 'bridge_only'"),
    ],
)  # fmt: skip
def test_mixed_or_broken_rows_are_refused(tmp_path: Path, change: dict, message: str) -> None:
    found = rows()
    found[0] = {**found[0], **change}
    with pytest.raises(ArtifactError, match=message):
        read_records(store(tmp_path, found=found))


def test_truncated_or_foreign_files_are_refused(tmp_path: Path) -> None:
    folder = store(tmp_path)
    data = (folder / "records.parquet").read_bytes()
    (folder / "records.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(ArtifactError, match="not a readable Parquet file"):
        read_records(folder)
    folder = store(tmp_path)
    (folder / "provenance.json").write_text("[]")
    with pytest.raises(ArtifactError, match="must hold an object"):
        read_records(folder)


def test_missing_column_is_named() -> None:
    with pytest.raises(ArtifactError, match="prompt_hash"):
        as_frame([{name: value for name, value in rows()[0].items() if name != "prompt_hash"}])


def test_directions_of_one_table_must_agree(tmp_path: Path) -> None:
    store(tmp_path)
    store(tmp_path, "b_to_a", max_new_tokens=32)
    with pytest.raises(ArtifactError, match=r"max_new_tokens is 16 in .* and 32 in"):
        load_records(tmp_path, "micro")
    store(tmp_path, "b_to_a", found=[{**one, "version": 2} for one in rows("b_to_a")])
    with pytest.raises(ArtifactError, match="search_qa is version 1 in a_to_b, 2 in b_to_a"):
        load_records(tmp_path, "micro")
    other = {"search_qa/00003": "search_qa/00009"}
    store(tmp_path, "b_to_a", found=[{**one, "example": other.get(one["example"], one["example"])} for one in rows("b_to_a")])
    with pytest.raises(ArtifactError, match="search_qa has 4 examples in a_to_b and 4 in b_to_a, 2 of them not shared"):
        load_records(tmp_path, "micro")


def test_a_direction_may_answer_fewer_of_the_same_examples(tmp_path: Path) -> None:
    few = [one for one in rows("b_to_a") if one["example"] != "search_qa/00003"]
    fewer = [one for one in rows("c_to_d") if one["example"] not in ("search_qa/00003", "search_qa/00001")]
    store(tmp_path, "b_to_a", found=few)
    store(tmp_path)
    store(tmp_path, "c_to_d", found=fewer)
    counts = load_records(tmp_path, "micro").only(task="search_qa", method="acct").groupby("direction").size()
    assert counts.to_dict() == {"a_to_b": 4, "b_to_a": 3, "c_to_d": 2}


def test_variants_budgets_and_shortened_runs_stay_apart(tmp_path: Path) -> None:
    store(tmp_path)
    store(tmp_path, run="a_to_b-uniform", variant="uniform")
    store(tmp_path, run="a_to_b-r0.5", retention=0.5)
    store(tmp_path, "b_to_a", shortened=True)
    assert load_records(tmp_path, "micro", retention=0.25).directions == ["a_to_b"]
    assert load_records(tmp_path, "micro", retention=0.5).configurations["a_to_b"]["retention"] == 0.5
    with pytest.raises(ArtifactError, match="both hold a_to_b"):
        load_records(tmp_path, "micro")
    with pytest.raises(ArtifactError, match="no run of variant 'random'"):
        load_records(tmp_path, "micro", variant="random")
    store(tmp_path, "c_to_d", variant="short", shortened=True)
    with pytest.raises(ArtifactError, match=r"1 shortened run\(s\) stay out of tables"):
        load_records(tmp_path, "micro", variant="short")


def test_a_running_evaluation_stays_out_and_is_named(tmp_path: Path) -> None:
    running = store(tmp_path, "b_to_a", variant="uniform")
    (running / "parts").mkdir()
    (running / "records.parquet").unlink()
    with pytest.raises(ArtifactError, match="Not finished yet: b_to_a"):
        load_records(tmp_path, "micro")
    store(tmp_path)
    assert unfinished(tmp_path, "micro") == [running] and settings(tmp_path, "micro") == [("", 0.25)]
    assert load_records(tmp_path, "micro").directions == ["a_to_b"]
    store(tmp_path, "b_to_a", variant="uniform")
    assert unfinished(tmp_path, "micro") == [] and settings(tmp_path, "micro") == [("", 0.25), ("uniform", 0.25)]


def test_unpaired_records_are_refused() -> None:
    found = [one for one in rows() if not (one["method"] == "acct" and one["example"] == "search_qa/00002")]
    with pytest.raises(ArtifactError, match="acct on search_qa, a_to_b: 1 of 4 examples are missing"):
        Sheet(Records(as_frame(found), {"a_to_b": {}}), Bootstrap(10))


def test_unknown_metric(tmp_path: Path) -> None:
    found = [{**one, "metric": "bleu"} if one["task"] == "search_qa" else one for one in rows()]
    with pytest.raises(ArtifactError, match="unknown metric 'bleu'"):
        read_records(store(tmp_path, found=found))


def test_malformed_json(tmp_path: Path) -> None:
    folder = store(tmp_path)
    (folder / "configuration.json").write_text(json.dumps({})[:-1])
    with pytest.raises(ArtifactError, match="is not JSON"):
        read_records(folder)


@pytest.mark.parametrize(
    ("configuration", "message"),
    [({"direction": "a_to_b"}, "got 'a_to_b' and None"), ({"retention": 0.25}, "got None and 0.25"), ([], "hold an object, got list"),
     ({"direction": "a_to_b", "retention": 4}, "got 'a_to_b' and 4")],
)  # fmt: skip
def test_a_configuration_without_what_tables_need_is_refused(tmp_path: Path, configuration: object, message: str) -> None:
    folder = store(tmp_path)
    (folder / "configuration.json").write_text(json.dumps(configuration))
    for read in (lambda: read_records(folder), lambda: settings(tmp_path, "micro")):
        with pytest.raises(ArtifactError, match=rf"configuration\.json must .*{message}.*Evaluate again"):
            read()


@pytest.mark.parametrize("capacities", [3, {}, {"counts": [[1]], "context_tokens": "9"}, {"counts": [[1], [1, 2]], "context_tokens": 9}])
def test_capacities_that_are_no_grid_are_refused(tmp_path: Path, capacities: object) -> None:
    folder = store(tmp_path)
    (folder / "provenance.json").write_text(json.dumps({"capacities": capacities}))
    with pytest.raises(ArtifactError, match=r"provenance\.json: capacities must hold"):
        read_records(folder)


def test_an_empty_evaluation_folder_is_named_beside_good_ones(tmp_path: Path) -> None:
    store(tmp_path)
    (tmp_path / "micro" / "b_to_a" / "evaluation").mkdir(parents=True)
    for read in (lambda: settings(tmp_path, "micro"), lambda: load_records(tmp_path, "micro")):
        with pytest.raises(ArtifactError, match="b_to_a"):
            read()


def test_a_column_of_another_type_is_refused_with_the_file(tmp_path: Path) -> None:
    folder = store(tmp_path)
    frame = pd.read_parquet(folder / "records.parquet")
    frame["tokens"] = "many"
    frame.to_parquet(folder / "records.parquet")
    with pytest.raises(ArtifactError, match=r"records\.parquet: records hold a value of another type.*Evaluate again"):
        read_records(folder)


def test_row_helper_covers_the_schema() -> None:
    assert len(as_frame([row("a", "boolq", "acct", 0)])) == 1
