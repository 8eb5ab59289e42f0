"""Rows from files of every format, and the errors that a wrong file gives."""

from __future__ import annotations

import builtins
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
from pyarrow import parquet

from acct.config.root import compose
from acct.data.hub import HUB, SCRIPTS, HubEntry
from acct.data.source import EVALUATION, FolderSource, HubSource, load_examples, read_jsonl
from acct.data.tasks.registry import TASKS, get_task
from acct.errors import DataError, UnknownName
from acct.training.session import data_source

from .hub_rows import ROWS


def write(root, task, split, lines):
    path = root / task / f"{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", TASKS)
def test_json_lines_parquet_and_arrow_give_the_same_examples(name, tmp_path):
    rows = ROWS[name] if name != "hellaswag" else [{**row, "label": str(row["label"])} for row in ROWS[name]]
    task = get_task(name, **({"window_tokens": 6, "context_tokens": 4} if name == "wikitext" else {}))
    table = pyarrow.Table.from_pylist(rows)
    write(tmp_path / "json", name, "test", rows)
    for root in ("parquet", "shards", "arrow"):
        (tmp_path / root / name).mkdir(parents=True)
    parquet.write_table(table, tmp_path / "parquet" / name / "test.parquet")
    for shard in range(2):
        part = table.slice(0, 1) if shard == 0 else table.slice(1)
        parquet.write_table(part, tmp_path / "shards" / name / f"test-{shard:05d}-of-00002.parquet")
    (tmp_path / "arrow" / name / "test").mkdir()
    with pyarrow.ipc.new_stream(tmp_path / "arrow" / name / "test" / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    loaded = [load_examples(FolderSource(tmp_path / root), task, EVALUATION) for root in ("json", "parquet", "shards", "arrow")]
    assert loaded[0] and all(examples == loaded[0] for examples in loaded)


def test_a_malformed_line_is_named_by_file_and_line(tmp_path):
    good = ROWS["boolq"][0]
    for line, why in (
        ("{'a': 1}", "one JSON object"),
        ("[1, 2]", "named fields"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": ', "one JSON"),
    ):
        path = write(tmp_path, "boolq", "test", [good, "", line, good])
        with pytest.raises(DataError, match=rf"test\.jsonl:3: .*{why}"):
            read_jsonl(path)
    path.write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    with pytest.raises(DataError, match=r"test\.jsonl:2: expected UTF-8"):
        read_jsonl(path)


def test_blank_lines_a_byte_order_mark_and_a_limit(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n{"a": 2}\n{"a": 3}')
    assert [row["a"] for row in read_jsonl(path)] == [1, 2, 3]
    assert [row["a"] for row in read_jsonl(path, 2)] == [1, 2]
    path.write_bytes(b'{"a": 1}\nbroken\n')
    assert read_jsonl(path, 1) == [{"a": 1}]  # what is not asked for is not judged


def test_a_missing_split_lists_what_is_there(tmp_path):
    write(tmp_path, "boolq", "validation", ROWS["boolq"])
    with pytest.raises(DataError, match=r"test\.jsonl.*found: validation\.jsonl"):
        FolderSource(tmp_path).rows("boolq", "test")
    with pytest.raises(DataError, match="no such folder"):
        FolderSource(tmp_path).rows("race", "test")
    source = FolderSource(tmp_path, evaluation_splits={"boolq": "validation"})
    assert len(source.rows("boolq", EVALUATION)) == 2 and len(source.rows("boolq", EVALUATION, 1)) == 1


def test_another_folder_name(tmp_path):
    write(tmp_path, "wikitext/wikitext-2-raw-v1", "test", ROWS["wikitext"])
    assert FolderSource(tmp_path, folders={"wikitext": "wikitext/wikitext-2-raw-v1"}).rows("wikitext", "test") == ROWS["wikitext"]


def test_empty_and_broken_files(tmp_path):
    write(tmp_path, "boolq", "test", [""])
    with pytest.raises(DataError, match="the file is empty"):
        FolderSource(tmp_path).rows("boolq", "test")
    (tmp_path / "race").mkdir()
    (tmp_path / "race" / "test.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="expected a Parquet file"):
        FolderSource(tmp_path).rows("race", "test")
    (tmp_path / "piqa" / "test").mkdir(parents=True)
    (tmp_path / "piqa" / "test" / "data-0.arrow").write_bytes(b"no arrow")
    with pytest.raises(DataError, match="expected an Arrow stream"):
        FolderSource(tmp_path).rows("piqa", "test")


def test_a_row_of_another_schema_names_file_row_and_field(tmp_path):
    write(tmp_path, "boolq", "test", [ROWS["boolq"][0], {"question": "q", "passage": "p", "answer": "yes"}])
    with pytest.raises(DataError, match=r"test\.jsonl: boolq, row 1, field 'answer': expected true or false, got 'yes'"):
        load_examples(FolderSource(tmp_path), get_task("boolq"), "test")


def test_two_rows_with_one_id_are_refused(tmp_path):
    write(tmp_path, "pubmed_qa", "test", [ROWS["pubmed_qa"][0], ROWS["pubmed_qa"][1], ROWS["pubmed_qa"][0]])
    with pytest.raises(DataError, match=r"examples 0 and 2 have one id, 'pubmed_qa/21645374'"):
        load_examples(FolderSource(tmp_path), get_task("pubmed_qa"), "test")


def test_text_too_short_for_one_window_is_said_so(tmp_path):
    write(tmp_path, "wikitext", "test", ROWS["wikitext"])
    with pytest.raises(DataError, match="too short for its windows"):
        load_examples(FolderSource(tmp_path), get_task("wikitext"), "test")


def test_every_task_has_a_place_on_the_hub():
    assert set(HUB) == {*TASKS, "squad", "hotpot_qa"}
    assert HubSource().split("pubmed_qa", EVALUATION) == "train" and HubSource().split("boolq", "train") == "train"
    with pytest.raises(UnknownName, match="task of the hub"):
        HubSource().rows("bolq", "train")


def test_the_hub_without_the_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **named):
        if name == "datasets":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"needs the package `datasets`: pip install 'acct\[data\]'"):
        HubSource().rows("boolq", EVALUATION)


def test_the_hub_without_a_network_and_with_one(monkeypatch):
    calls = []

    def load_dataset(path, config, split, revision):
        calls.append((path, config, split, revision))
        if config is None:
            raise ConnectionError("no route\nto host")
        return ROWS["mmlu"]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    source = HubSource({**HUB, "mmlu": HubEntry("cais/mmlu", "all", "test", "abc")}, Path("rows"))
    with pytest.raises(DataError, match=r"google/boolq \(default, validation\) on the hub cannot be loaded: no route\. Check the name"):
        source.rows("boolq", EVALUATION)
    with pytest.raises(DataError, match=r"under rows/boolq/validation\.jsonl and set data\.source=folder"):
        source.rows("boolq", EVALUATION)
    assert source.rows("mmlu", EVALUATION) == ROWS["mmlu"]
    assert calls[-1] == ("cais/mmlu", "all", "test", "abc")
    assert source.where("mmlu", EVALUATION) == "cais/mmlu (all, test, revision abc) on the hub"


def test_the_real_package_loads_a_data_set_through_an_entry(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs the extra `data`")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "piqa").mkdir()
    datasets.Dataset.from_list(ROWS["piqa"]).to_parquet(tmp_path / "piqa" / "validation.parquet")
    source = HubSource({"piqa": HubEntry(str(tmp_path / "piqa"), None, "validation")})
    assert source.rows("piqa", EVALUATION) == ROWS["piqa"] and source.rows("piqa", EVALUATION, 1) == ROWS["piqa"][:1]
    with pytest.raises(DataError, match=r"Unknown split \"dev\""):
        source.rows("piqa", "dev")


@pytest.mark.parametrize("name", [*SCRIPTS, "boolq"])
def test_a_script_data_set_says_which_file_goes_where(name, tmp_path):
    pytest.importorskip("datasets", reason="needs the extra `data`")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "set.py").write_text("raise SystemExit\n")
    source = HubSource({name: HubEntry(str(tmp_path / "set"), None, "test")}, tmp_path / "rows")
    with pytest.raises(DataError) as caught:
        source.rows(name, EVALUATION)
    said = str(caught.value)
    assert "scripts are no longer supported, but found set.py" in said and f"put it into {tmp_path}/rows/{name} as test." in said
    if name in SCRIPTS:
        assert f"data.hub.{name}.path={HUB[name].path}" in said and SCRIPTS[name].fetch in said
        assert SCRIPTS[name].path != HUB[name].path
        with pytest.raises(DataError, match=f"The real data set: fetch {re.escape(SCRIPTS[name].fetch)}, and put it into"):
            FolderSource(tmp_path).rows(name, "test")
    else:
        assert "Name a converted copy by data.hub.boolq.path" in said


def test_the_configuration_chooses_source_folder_split_and_copy(tmp_path):
    write(tmp_path, "wikitext/raw", "test", ROWS["wikitext"])
    write(tmp_path, "boolq", "validation", ROWS["boolq"])
    folder = ["scale=paper", "direction=qwen3_4b_to_8b", f"paths.data={tmp_path}"]
    source = data_source(compose([*folder, "data.evaluation_split=hub", "data.folders.wikitext=wikitext/raw"]))
    assert source.rows("wikitext", EVALUATION) == ROWS["wikitext"] and source.rows("boolq", EVALUATION) == ROWS["boolq"]
    with pytest.raises(DataError, match=r"expected test\.jsonl.*found: validation\.jsonl"):
        data_source(compose(folder)).rows("boolq", EVALUATION)
    hub = data_source(compose([*folder, "data.source=hub", "data.hub.piqa.path=me/piqa", "data.hub.piqa.revision=abc"]))
    assert hub.where("piqa", EVALUATION) == "me/piqa (default, validation, revision abc) on the hub"
    for override in ("data.dataset=bolq", "evaluation.tasks=[bolq]", "+data.folders.bolq=x", "+evaluation.examples_by_task.bolq=3"):
        with pytest.raises(UnknownName, match="Did you mean 'boolq'"):
            compose([override])


def test_one_json_array_or_json_lines_under_the_name_json(tmp_path):
    path = tmp_path / "boolq" / "test.json"
    path.parent.mkdir()
    source = FolderSource(tmp_path)
    for text in (
        json.dumps(ROWS["boolq"], indent=1),
        "\n".join(json.dumps(row) for row in ROWS["boolq"]),
        "\n" + json.dumps(ROWS["boolq"]),
    ):
        path.write_text(text)
        assert source.rows("boolq", "test") == ROWS["boolq"] and source.rows("boolq", "test", 1) == ROWS["boolq"][:1]
    for text, why in (("[1]", "row 0: expected a JSON object"), ('[{"a": 1', "expected one JSON array"), ("[]", "the file is empty")):
        path.write_text(text)
        with pytest.raises(DataError, match=why):
            source.rows("boolq", "test")
    path.write_text("")
    with pytest.raises(DataError, match="the file is empty"):
        source.rows("boolq", "test")


def test_a_split_in_two_forms_is_refused_instead_of_guessed(tmp_path):
    write(tmp_path, "boolq", "test", ROWS["boolq"])
    parquet.write_table(pyarrow.Table.from_pylist(ROWS["boolq"]), tmp_path / "boolq" / "test.parquet")
    with pytest.raises(DataError, match=r"in one form, found test\.jsonl, test\.parquet"):
        FolderSource(tmp_path).rows("boolq", "test")
