"""MuSiQue's steps as single questions: sentences, contexts, further questions, refusals."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest

from acct.data.source import FolderSource, load_examples
from acct.data.tasks.musique_steps import MuSiQueSteps, question_of
from acct.data.tasks.registry import get_task
from acct.errors import DataError

ROW = {
    "id": "3hop__1", "question": "Where was the founder of Orlen born?", "answer": "Tavin Hill", "answer_aliases": [], "answerable": True,
    "question_decomposition": [
        {"id": 1, "question": "Orlen >> founder", "answer": "Mira Sol", "paragraph_support_idx": 2},
        {"id": 2, "question": "#1 >> place of birth", "answer": "Tavin Hill", "paragraph_support_idx": 0},
        {"id": 3, "question": "what lies under #2 's slope , near #4 ?", "answer": "a lake", "paragraph_support_idx": 0},
    ],
    "paragraphs": [
        {"idx": 0, "title": "Mira Sol", "paragraph_text": " She was born on Tavin Hill, over a lake. ", "is_supporting": True},
        {"idx": 1, "title": "Kell", "paragraph_text": "Kell is a river in the east of the land of Orlen.", "is_supporting": False},
        {"idx": 2, "title": "Orlen", "paragraph_text": "Mira Sol founded it.", "is_supporting": True},
    ],
}  # fmt: skip


def test_sentences_by_hand() -> None:
    assert question_of("Orlen >> founder", []) == "What is the founder of Orlen?"
    assert question_of("#1 >> place of birth", ["Mira Sol"]) == "Where was Mira Sol born?"
    assert question_of("#2 >> instance of", ["Kell", "Tavin Hill"]) == "What is Tavin Hill?"
    assert question_of("what lies  under #2 's slope , near #4 ?", ["a", "Tavin Hill"]) == "What lies under Tavin Hill's slope, near #4?"


def test_each_step_has_its_paragraph_and_others_while_they_fit() -> None:
    task = MuSiQueSteps(least_words=12, most_words=12)
    first, second, third = task.examples([ROW])
    assert [one.id for one in (first, second, third)] == [f"musique_steps/3hop__1:{number}" for number in range(3)]
    assert [one.query for one in (first, second)] == ["Question: What is the founder of Orlen?", "Question: Where was Mira Sol born?"]
    assert (first.answers, second.answers, third.answers) == (("Mira Sol",), ("Tavin Hill",), ("a lake",))
    born = "She was born on Tavin Hill, over a lake."
    assert (first.context, second.context, third.context) == ("Mira Sol founded it.", born, born)  # nothing else fits into twelve words
    assert first.further == () and second.further == ((third.query, "a lake"),) and third.further == ((second.query, "Tavin Hill"),)
    wide = MuSiQueSteps(least_words=100, most_words=100).examples([ROW])
    assert all(sorted(one.context.split("\n")) == sorted(p["paragraph_text"].strip() for p in ROW["paragraphs"]) for one in wide)
    assert [len(one.further) for one in wide] == [2, 2, 2]


def test_lengths_are_kept_and_equal_seeds_give_equal_contexts() -> None:
    row = {**ROW, "paragraphs": [*ROW["paragraphs"], *({"paragraph_text": f"Town {n} has walls and a gate."} for n in range(60))]}
    task = MuSiQueSteps(least_words=40, most_words=90)
    lengths = [len(one.context.split()) for number in range(30) for one in task.examples([{**row, "id": f"row {number}"}])]
    assert max(lengths) <= 90 and min(lengths) > 40 - 7 and len(set(lengths)) > 10
    assert task.examples([row]) == task.examples([row]) != MuSiQueSteps(seed=1, least_words=40, most_words=90).examples([row])


def test_a_paragraph_is_asked_the_same_question_once() -> None:
    other = {**copy.deepcopy(ROW), "id": "3hop__2"}
    other["question_decomposition"][2]["question"] = "What lies in the east?"
    assert [one.id[-9:] for one in get_task("musique_steps").examples([ROW, other])] == ["3hop__1:0", "3hop__1:1", "3hop__1:2", "3hop__2:2"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("paragraph_support_idx", 3, r"'paragraph_support_idx': expected the number of one of 3 paragraphs, got 3"),
        ("paragraph_support_idx", True, "'paragraph_support_idx': expected the number of one of 3 paragraphs, got True"),
        ("answer", " ", "'answer': expected text that is not empty"),
        ("question", None, "'question': expected text that is not empty"),
    ],
)
def test_a_wrong_step_is_named(field: str, value: object, message: str) -> None:
    row = copy.deepcopy(ROW)
    row["question_decomposition"][1][field] = value
    with pytest.raises(DataError, match=rf"musique_steps, row 7, field {message}"):
        get_task("musique_steps").from_row(row, 7)


def test_a_row_without_steps_or_with_wrong_lengths_is_refused() -> None:
    with pytest.raises(DataError, match=r"musique_steps, row 0, field 'question_decomposition': expected at least one step"):
        get_task("musique_steps").examples([{**ROW, "question_decomposition": []}])
    with pytest.raises(DataError, match=r"1 <= least_words <= most_words, got 9 and 4"):
        MuSiQueSteps(least_words=9, most_words=4)


@pytest.mark.real
def test_every_real_step_is_answered_by_its_paragraph() -> None:
    place = os.environ.get("ACCT_REAL_DATA")
    if not place or not (Path(place) / "musique").is_dir():
        pytest.skip("ACCT_REAL_DATA names no folder with musique/")
    examples = load_examples(FolderSource(Path(place), {"musique_steps": "musique"}), get_task("musique_steps"), "train")
    assert len(examples) >= 200 and all(">>" not in one.query and one.answers[0].lower() in one.context.lower() for one in examples)
