"""Blanks in plain text: which spans are asked for, what a question shows, contexts, refusals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acct.data.source import FolderSource, load_examples
from acct.data.tasks.registry import get_task
from acct.data.tasks.text_cloze import TextCloze, spans
from acct.errors import DataError

FIRST = (
    "Orlen is a town on the Tavin. In 1867 it was founded by Mira Sol, who had come from the Isle of Kell with twelve friends. "
    "It has 4,512 people and two bridges, and Mira Sol's house still stands there, as everyone knows."
)
SECOND = "The Kell railway was opened in 1901. " + "It runs through woods and over hills and along the river for a whole day. " * 2
SHORT = "Nothing of note is known of Bramble."
ASKED = "Question: Fill the blank: "


def pairs(example) -> list[tuple[str, str]]:
    """All questions of an example without what they begin with, and their answers."""
    return [(question.removeprefix(ASKED), answer) for question, answer in ((example.query, example.answers[0]), *example.further)]


def test_spans_by_hand() -> None:
    def texts(sentence: str) -> list[str]:
        return [text for _, text in spans(sentence)]

    assert texts("In 1867 it was founded by Mira Sol, who came from the Isle of Kell.") == ["1867", "Mira Sol", "Isle of Kell"]
    assert texts("Mira Sol's house stands") == []  # the first words are left out
    assert texts("it has 4,512 people, 3.5 million of them in Orlen, and $20 billion, or 7%") == [
        "4,512", "3.5 million", "Orlen", "$20 billion", "7%",
    ]  # fmt: skip
    assert texts("near Tavin and far from Tavin") == []  # the sentence would give it away
    assert texts("she saw Mira's house") == ["Mira"] and texts("version v2x of a 7") == []
    for (start, end), text in spans("then Mira Sol came to Orlen in 1867."):
        assert "then Mira Sol came to Orlen in 1867."[start:end] == text


def test_questions_are_sentences_with_a_blank_and_answers_stand_in_the_context() -> None:
    examples = TextCloze().examples([{"id": "a", "text": f"{FIRST}\n{SHORT}\n\n{SECOND}"}])
    assert [one.id for one in examples] == ["text_cloze/a:0", "text_cloze/a:2"]  # the second paragraph is too short
    for one in examples:
        assert one.query.startswith(ASKED) and all(question.startswith(ASKED) for question, _ in one.further)
        for shown, answer in pairs(one):
            assert shown.count("_") == 1 and shown.replace("_", answer) in one.context, "a sentence of the context, or a part of one"
            assert all(len(side.split()) <= 12 for side in shown.split("_"))
    assert len(examples[0].further) >= 3 and len(set(examples[0].further)) == len(examples[0].further)
    (every,) = TextCloze(blanks=9).examples([{"text": FIRST}])
    assert {answer for _, answer in pairs(every)} == {"Tavin", "1867", "Mira Sol", "Isle of Kell", "4,512"}


def test_a_question_shows_what_is_around_its_blank() -> None:
    (one,) = TextCloze(around=2, blanks=9).examples([{"text": FIRST}])
    shown = {answer: question for question, answer in pairs(one)}
    assert shown["1867"] == "In _ it was" and shown["Isle of Kell"] == "from the _ with twelve" and shown["Tavin"] == "on the _."


def test_limits_on_questions_answers_and_contexts() -> None:
    rows = [{"id": f"r{number}", "text": f"{FIRST}\n{SECOND}"} for number in range(20)]
    every = [one for row in rows for one in TextCloze(blanks=1).examples([row])]
    assert {len(one.further) for one in every} <= {0, 1} and len({one.query for one in every}) > 3
    short = [one for row in rows for one in TextCloze(answer_words=2, blanks=9).examples([row])]
    assert all(answer != "Isle of Kell" for one in short for _, answer in pairs(one))
    alone = TextCloze(least_words=1, most_words=1).examples(rows[:1])
    assert [one.context for one in alone] == [FIRST, SECOND.strip()]
    both = TextCloze(least_words=200, most_words=200).examples(rows[:1])
    assert all(sorted(one.context.split("\n")) == sorted([FIRST, SECOND.strip()]) for one in both)
    assert TextCloze().examples(rows) == TextCloze().examples(rows) and len(TextCloze().examples(rows)) == 2  # each paragraph once
    assert TextCloze(seed=1).examples(rows[:3]) != TextCloze().examples(rows[:3])


def test_paragraphs_of_other_data_sets() -> None:
    row = {"paragraphs": [{"paragraph_text": FIRST}, {"paragraph_text": " "}, {"paragraph_text": SECOND}]}
    assert [one.id for one in get_task("text_cloze").examples([row])] == ["text_cloze/00000:0", "text_cloze/00000:1"]


def test_what_cannot_be_asked_is_named() -> None:
    assert get_task("text_cloze").examples([{"text": SHORT}, {"text": " \n"}]) == []
    with pytest.raises(DataError, match=r"text_cloze, row 3, field 'text': expected a paragraph of 30 words with a name or a number"):
        get_task("text_cloze").from_row({"text": SHORT}, 3)
    with pytest.raises(DataError, match=r"text_cloze, row 0, field 'text': expected text, but it is missing"):
        get_task("text_cloze").examples([{"body": FIRST}])
    with pytest.raises(DataError, match=r"paragraph_words, around, answer_words and blanks must be at least 1"):
        TextCloze(blanks=0)
    with pytest.raises(DataError, match=r"1 <= least_words <= most_words"):
        TextCloze(least_words=0)


@pytest.mark.real
def test_real_paragraphs() -> None:
    place = os.environ.get("ACCT_REAL_DATA")
    if not place or not (Path(place) / "musique").is_dir():
        pytest.skip("ACCT_REAL_DATA names no folder with musique/")
    examples = load_examples(FolderSource(Path(place), {"text_cloze": "musique"}), get_task("text_cloze"), "train")
    assert len(examples) > 1000
    for one in examples:
        shown, answer = pairs(one)[0]
        assert "_" in shown and answer in one.context and len(answer.split()) <= 5
