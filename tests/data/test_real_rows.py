"""Whole real data sets, where a folder of them is at hand: ACCT_REAL_DATA=<folder> make test-real.

The folder holds <task>/<split>.jsonl (or .json, .parquet, Arrow) with the split that is scored on the hub; WikiText may lie in
wikitext/wikitext-2-raw-v1. Each set that is there is read whole; the others are skipped with what was looked for.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from acct.config.root import compose
from acct.data.manifest import draw
from acct.data.prompts import encode
from acct.data.source import EVALUATION, load_examples
from acct.data.tasks.registry import TASKS, get_task
from acct.errors import DataError
from acct.training.session import data_source

from .test_schemas import in_three_forms
from .tiny_tokenizers import QWEN3_LIKE, tokenizer

pytestmark = pytest.mark.real
VARIABLE = "ACCT_REAL_DATA"
NESTED = {"wikitext": "wikitext/wikitext-2-raw-v1"}
COMPARED = 40  # rows that go through all three forms


@pytest.fixture(params=TASKS)
def found(request: pytest.FixtureRequest):
    """The task's name, its rows and where they came from."""
    name, place = request.param, os.environ.get(VARIABLE)
    if not place:
        pytest.skip(f"{VARIABLE} names no folder with {name}/")
    nested = [f"data.folders.{task}={folder}" for task, folder in NESTED.items() if (Path(place) / folder).is_dir()]
    source = data_source(compose(["scale=paper", "direction=qwen3_4b_to_8b", f"paths.data={place}", "data.evaluation_split=hub", *nested]))
    if not (Path(place) / source.folders[name]).is_dir():
        pytest.skip(f"{place}/{source.folders[name]} is not there")
    return name, source


def test_every_row_of_a_real_data_set_is_an_example(found) -> None:
    name, source = found
    task, rows = get_task(name), source.rows(name, EVALUATION)
    examples = load_examples(source, task, EVALUATION)
    assert len(examples) == len(rows) if name not in ("wikitext", "search_qa") else examples
    assert all(e.context.strip() and (e.contextual, e.kind, e.task) == (task.contextual, task.kind, name) for e in examples)
    if task.kind == "choice" and len(examples) >= 100 and name != "wiki_hop":
        golds = Counter(e.gold for e in examples)
        assert len(golds) == max(len(e.candidates) for e in examples) and max(golds.values()) < 0.7 * len(examples)
    assert draw(examples, None, 0)[:2] == draw(examples[::-1], 2, 0)
    for example in examples[:50]:
        encoded = encode(example, tokenizer(template=QWEN3_LIKE))
        assert encoded.dropped_tokens == 0 and encoded.context_ids and encoded.query_ids


def test_real_rows_in_the_hubs_types_and_in_every_form(found, tmp_path) -> None:
    name, source = found
    plain, *others = in_three_forms(source.rows(name, EVALUATION, COMPARED), name, tmp_path)
    assert plain and others == [plain, plain]


def test_a_split_that_a_real_folder_lacks_is_named(found) -> None:
    name, source = found
    with pytest.raises(DataError, match=r"expected no_such_split\.jsonl.*found: .*"):
        source.rows(name, "no_such_split")
