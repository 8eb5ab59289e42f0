"""Real and hand-written rows in the hub's own types: JSON lines, Parquet and Arrow give equal examples."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path

import pytest

from acct.data.source import EVALUATION, FolderSource, load_examples
from acct.data.tasks.registry import TASKS, get_task
from acct.data.tasks.search_qa import SearchQA
from acct.errors import DataError

from .hub_rows import ROWS

datasets = pytest.importorskip("datasets", reason="the hub's types need the extra `data`")
EXCERPTS = Path(__file__).parent / "rows"
REAL = sorted(path.name for path in EXCERPTS.iterdir() if path.is_dir())
SPLITS = {"mmlu": "test"}
WINDOWS = {"wikitext": {"window_tokens": 6, "context_tokens": 4}}


def typed(rows, name):
    """Rows with every field of the hub's schema, null where they have none, and nothing else."""
    from .hub_schemas import SCHEMAS

    wanted = SCHEMAS[name]
    return datasets.Dataset.from_list([{key: row.get(key) for key in wanted} for row in rows], features=wanted)


def in_three_forms(rows, name, root):
    """Examples of the rows as JSON lines, and in the hub's types as Parquet and as Arrow (`save_to_disk`)."""
    made = typed(rows, name)
    for form in ("jsonl", "parquet", "arrow"):
        (root / form / name).mkdir(parents=True)
    (root / "jsonl" / name / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    made.to_parquet(root / "parquet" / name / "test.parquet")
    made.save_to_disk(root / "arrow" / name / "test")
    task = get_task(name, **WINDOWS.get(name, {}))
    return [load_examples(FolderSource(root / form), task, EVALUATION) for form in ("jsonl", "parquet", "arrow")]


@pytest.mark.parametrize("name", TASKS)
def test_the_hubs_types_give_the_examples_of_plain_json(name, tmp_path):
    rows = copy.deepcopy(ROWS[name])
    for row in rows:
        if name == "hellaswag":
            row["label"] = str(row["label"])
    plain, *others = in_three_forms(rows, name, tmp_path)
    assert plain and others == [plain, plain]


@pytest.mark.parametrize("name", REAL)
def test_real_rows_load_in_every_form(name, tmp_path):
    source = FolderSource(EXCERPTS, evaluation_split="validation", evaluation_splits=SPLITS)
    rows = source.rows(name, EVALUATION)
    plain, *others = in_three_forms(rows, name, tmp_path)
    assert len(plain) == len(rows) >= 3 and others == [plain, plain] == [load_examples(source, get_task(name), EVALUATION)] * 2
    assert all(example.candidates[example.gold] == example.answers[0] for example in plain)


def test_what_is_read_of_the_real_rows():
    source = FolderSource(EXCERPTS, evaluation_split="validation", evaluation_splits=SPLITS)
    assert REAL == ["boolq", "hellaswag", "mmlu", "piqa", "winogrande"]
    found = {name: load_examples(source, get_task(name), EVALUATION) for name in REAL}
    pair = found["winogrande"][:2]  # twin sentences, one word apart, whose answers differ
    assert [e.context for e in pair] == ["Sarah was a much better surgeon than Maria so"] * 2 and [e.gold for e in pair] == [1, 0]
    assert [e.scored_suffix for e in pair] == [" always got the easier cases.", " always got the harder cases."]
    assert found["piqa"][1].candidates == ("replace drawer with bobby pin", "finish, woodgrain with  bobby pin")
    assert found["hellaswag"][0].context.startswith("How to get to the north pole. Book your flight. The fastest")
    assert "[" not in "".join(e.context + "".join(e.candidates) for e in found["hellaswag"])
    assert found["hellaswag"][2].context == "A lady walks to a barbell. She bends down and grabs the pole. the lady"
    assert Counter(e.answers[0] for e in found["boolq"]) == {"yes": 2, "no": 1}
    assert found["mmlu"][3].context.startswith("Question: Marcia Baron argues that the artificiality")


def test_a_label_of_another_width_or_kind_is_judged_by_its_value(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = ROWS["piqa"]
    for number, kind in enumerate((pyarrow.int8(), pyarrow.uint32(), pyarrow.int64(), pyarrow.large_string())):
        cells = [str(row["label"]) if pyarrow.types.is_large_string(kind) else row["label"] for row in rows]
        columns = {key: [row[key] for row in rows] for key in ("goal", "sol1", "sol2")}
        table = pyarrow.table({**columns, "label": pyarrow.array(cells, kind)})
        (tmp_path / f"{number}" / "piqa").mkdir(parents=True)
        parquet.write_table(table, tmp_path / f"{number}" / "piqa" / "test.parquet")
        examples = load_examples(FolderSource(tmp_path / f"{number}"), get_task("piqa"), "test")
        assert [example.gold for example in examples] == [0, 1]
    wrong = pyarrow.table({**columns, "label": pyarrow.array([0, -1])})  # the hub marks test rows without a label by -1
    (tmp_path / "wrong" / "piqa").mkdir(parents=True)
    parquet.write_table(wrong, tmp_path / "wrong" / "piqa" / "test.parquet")
    with pytest.raises(DataError, match=r"test\.parquet: piqa, row 1, field 'label': expected a label 0\.\.1, got -1"):
        load_examples(FolderSource(tmp_path / "wrong"), get_task("piqa"), "test")


CONTEXT = "[DOC] [TLE] Orlen [PAR] Orlen lies on the Tavin. [PAR] It is old. [DOC] [TLE] Tavin [PAR] The Tavin is long."
ONE = {"context": CONTEXT, "question": "This river runs through Orlen", "answers": ["the Tavin", "Tavin", "the Tavin"]}
TWO = {**ONE, "question": "This town lies on the Tavin", "answers": ["Orlen"]}


def test_search_qa_takes_the_three_shapes_of_the_mrqa_form():
    copies = [{"key": "a", "labels": [], **ONE}, {"key": "b", "labels": [], **TWO}]
    collection = [
        {"subset": "SearchQA", "qid": "a", **ONE},
        {"subset": "SQuAD", "qid": "s", **ONE},
        {"subset": "SearchQA", "qid": "b", **TWO},
    ]
    questions = [{key: row[key] for key in ("question", "answers")} for row in (ONE, TWO)]
    files = [{"header": {"dataset": "SearchQA"}}, {"context": CONTEXT, "qas": [{"qid": "a", **questions[0]}, {"qid": "b", **questions[1]}]}]
    for rows in (copies, collection, files):
        first, second = SearchQA().examples(rows)
        assert (first.id, second.id) == ("search_qa/a", "search_qa/b")
        assert first.context == second.context == "Orlen lies on the Tavin.\nIt is old.\nThe Tavin is long."
        assert first.answers == ("the Tavin", "Tavin") and first.query == "Question: This river runs through Orlen?"
    assert SearchQA(titles=True).examples(copies)[0].context == "Orlen\nOrlen lies on the Tavin.\nIt is old.\nTavin\nThe Tavin is long."
    assert (
        SearchQA(titles=True).examples(ROWS["search_qa"][:1])[0].context == "Orlen\nOrlen lies on the Tavin.\nx\nTavin\nThe Tavin is long."
    )
    assert SearchQA().examples([{**ONE, "context": "No marks."}])[0].id == "search_qa/00000"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answers": []}, r"row 1, field 'answers': expected at least one answer"),
        ({"answers": "Orlen"}, r"row 1, field 'answers': expected a list of texts"),
        ({"context": "[DOC] [TLE] only a title [PAR]"}, r"row 1, field 'context': expected at least one snippet"),
        ({"question": ""}, r"row 1, field 'question': expected text that is not empty"),
        ({"qas": ["text"]}, r"row 1: a row must be an object of named fields, got str"),
    ],
)
def test_a_wrong_row_of_the_mrqa_form_is_named(change, said):
    with pytest.raises(DataError, match=rf"search_qa, {said}"):
        SearchQA().examples([ONE, {**ONE, **change}])
