"""Factbook-QA, SQuAD, HotpotQA and MuSiQue: what is read of a row, the exact prompts, and what a wrong row says."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from acct.data.prompts import encode
from acct.data.source import FolderSource, load_examples
from acct.data.tasks.registry import FURTHER, get_task
from acct.errors import DataError

from .test_source import write
from .tiny_tokenizers import QWEN3_LIKE, tokenizer

ROWS: dict[str, dict[str, Any]] = {
    "factbook_qa": {
        "id": "or:Government/Capital/name", "category": "Government", "question": "What is the capital of Orlen?", "answer": "Tavin",
        "search_results": {"snippets": ["Orlen, Coastline: 9 km", "Orlen, Capital: Tavin"], "titles": ["Orlen", "Orlen"]},
    },
    "squad": {
        "id": "56be", "title": "Orlen", "context": " Mira Sol founded Orlen in 1867. ", "question": "When did Mira Sol found Orlen?",
        "answers": {"text": ["1867", "in 1867", "1867"], "answer_start": [26, 23, 26]},
    },
    "hotpot_qa": {
        "id": "5a77", "question": "Which river does the founder's town lie on", "answer": "the Tavin", "type": "bridge", "level": "easy",
        "supporting_facts": {"title": ["Mira Sol", "Orlen"], "sent_id": [0, 1]},
        "context": {
            "title": ["Mira Sol", "Orlen"],
            "sentences": [["Mira Sol founded Orlen.", " She sang."], ["Orlen is a town.", " It lies on the Tavin."]],
        },
    },
    "musique": {
        "id": "2hop__1_2", "question": "Where does the founder of Orlen live?", "answer": "Tavin Hill", "answer_aliases": ["the Hill", ""],
        "answerable": True, "question_decomposition": [],
        "paragraphs": [
            {"idx": 0, "title": "Orlen", "paragraph_text": "Mira Sol founded it.", "is_supporting": True},
            {"idx": 1, "title": "Mira Sol", "paragraph_text": "She lives on Tavin Hill.", "is_supporting": True},
        ],
    },
}  # fmt: skip
GOLDEN = {
    "factbook_qa": ("Orlen, Coastline: 9 km\nOrlen, Capital: Tavin", "Question: What is the capital of Orlen?", ("Tavin",)),
    "squad": ("Mira Sol founded Orlen in 1867.", "Question: When did Mira Sol found Orlen?", ("1867", "in 1867")),
    "hotpot_qa": (
        "Mira Sol: Mira Sol founded Orlen. She sang.\nOrlen: Orlen is a town. It lies on the Tavin.",
        "Question: Which river does the founder's town lie on?", ("the Tavin",),
    ),
    "musique": (
        "Orlen: Mira Sol founded it.\nMira Sol: She lives on Tavin Hill.", "Question: Where does the founder of Orlen live?",
        ("Tavin Hill", "the Hill"),
    ),
}  # fmt: skip


def test_every_further_task_has_a_row_here_or_a_file_of_its_own() -> None:
    assert set(GOLDEN) == set(ROWS) == set(FURTHER) - {"musique_steps", "text_cloze"}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_prompts(name: str) -> None:
    context, question, answers = GOLDEN[name]
    made = get_task(name).from_row(ROWS[name], 0)
    assert (made.id, made.task, made.kind, made.contextual) == (f"{name}/{ROWS[name]['id']}", name, "generate", True)
    assert (made.context, made.query, made.answers) == (context, question, answers)
    base, chat = tokenizer(bos=True), tokenizer(template=QWEN3_LIKE)
    encoded = encode(made, base)
    assert base.decode(encoded.context_ids) == f"<bos>{context}\n\n"
    assert base.decode(encoded.query_ids) == f"{question}\nAnswer: The answer is"
    assert base.decode(encoded.answer_ids) == f" {answers[0]}"
    encoded = encode(made, chat)
    assert chat.decode(encoded.context_ids) == f"<|im_start|>user\n{context}\n\n"
    whole = f"{question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nAnswer: The answer is"
    assert chat.decode(encoded.query_ids) == whole


@pytest.mark.parametrize("name", GOLDEN)
def test_rows_are_loaded_from_a_folder_by_their_own_ids(name: str, tmp_path) -> None:
    write(tmp_path, name, "test", [ROWS[name], {**ROWS[name], "id": "other"}])
    examples = load_examples(FolderSource(tmp_path), get_task(name), "test")
    assert [one.id for one in examples] == [f"{name}/{ROWS[name]['id']}", f"{name}/other"]


WRONG = [
    ("factbook_qa", "search_results.snippets", [], "at least one snippet"),
    ("factbook_qa", "answer", " ", "text that is not empty"),
    ("squad", "answers.text", [], "at least one answer"),
    ("squad", "context", 3, "text that is not empty"),
    ("hotpot_qa", "context.sentences", [["One."]], "one list of sentences for each of 2 titles"),
    ("hotpot_qa", "context.sentences", [["One."], "Two."], "one list of sentences"),
    ("hotpot_qa", "answer", None, "text that is not empty"),
    ("musique", "paragraphs", "none", "a list"),
    ("musique", "paragraphs", ["none"], "objects with title and paragraph_text"),
    ("musique", "answerable", False, "MuSiQue-Ans"),
]


@pytest.mark.parametrize(("name", "path", "value", "expected"), WRONG)
def test_a_wrong_field_is_named(name: str, path: str, value: Any, expected: str) -> None:
    row = copy.deepcopy(ROWS[name])
    *outer, last = path.split(".")
    inner = row
    for part in outer:
        inner = inner[part]
    inner[last] = value
    with pytest.raises(DataError, match=rf"{name}, row 4, field '{path}': expected .*{expected}"):
        get_task(name).from_row(row, 4)


@pytest.mark.real
@pytest.mark.parametrize(("name", "folder", "split"), [
    ("squad", "squad", "validation"), ("hotpot_qa", "hotpot_qa/distractor", "train"), ("musique", "musique", "train"),
])  # fmt: skip
def test_every_real_row_is_an_example(name: str, folder: str, split: str) -> None:
    place = os.environ.get("ACCT_REAL_DATA")
    if not place or not (Path(place) / folder).is_dir():
        pytest.skip(f"ACCT_REAL_DATA names no folder with {folder}/")
    source = FolderSource(Path(place), {name: folder})
    examples = load_examples(source, get_task(name), split)
    assert len(examples) == len(source.rows(name, split)) >= 100
    if name == "squad":
        assert all(any(answer in one.context for answer in one.answers) for one in examples)
    for one in examples[:20]:
        encoded = encode(one, tokenizer(template=QWEN3_LIKE))
        assert encoded.dropped_tokens == 0 and encoded.answer_ids
