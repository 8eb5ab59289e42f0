"""MuSiQue's steps: the single questions that its questions are made of, each on the paragraph that answers it; token F1.

A training set of short questions on encyclopaedic prose, for real pairs: the context is the step's paragraph among others of the same
row, in random order, as many as a drawn number of words holds. "#1" in a step's question stands for the answer of step 1; "X >> relation",
which is how MuSiQue writes questions that were made from a knowledge base, becomes a sentence. [ours]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Row, joined
from acct.data.tasks.paragraphs import AmongParagraphs

SENTENCES: dict[str, str] = {
    "applies to jurisdiction": "Which jurisdiction does {} apply to?",
    "capital of": "What is {} the capital of?",
    "educated at": "Where was {} educated?",
    "follows": "What does {} follow?",
    "instance of": "What is {}?",
    "licensed to broadcast to": "Where is {} licensed to broadcast?",
    "located in or next to body of water": "Which body of water is {} located in or next to?",
    "located in the administrative territorial entity": "Where is {} located?",
    "member of political party": "Which political party was {} a member of?",
    "member of sports team": "Which sports team was {} a member of?",
    "part of": "What is {} part of?",
    "place of birth": "Where was {} born?",
    "place of death": "Where did {} die?",
    "shares border with": "What does {} share a border with?",
}
"""Relations that "What is the ... of X?" does not fit."""


class MuSiQueSteps(AmongParagraphs):
    """Rows of MuSiQue-Ans: id, paragraphs[{paragraph_text}], question_decomposition[{question, answer, paragraph_support_idx}]."""

    name = "musique_steps"

    def examples(self, rows: Sequence[Mapping[str, Any]], tokenizer: Any = None) -> list[Example]:
        """Every step of every row, in order; a paragraph is asked the same question once."""
        found: dict[tuple[str, str], Example] = {}
        for index, row in enumerate(rows):
            for example, paragraph in self.steps(row, index):
                found.setdefault((example.query, paragraph), example)
        return list(found.values())

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        """The first step."""
        return next(self.steps(row, index))[0]

    def steps(self, row: Mapping[str, Any], index: int) -> Iterator[tuple[Example, str]]:
        """The examples of a row, each with the paragraph that answers it."""
        fields = self.row(row, index)
        own = fields.optional("id") or f"{index:05d}"
        paragraphs = [Row(self.name, one, index).text("paragraph_text").strip() for one in fields.items("paragraphs")]
        parts = [Row(self.name, one, index) for one in fields.items("question_decomposition")]
        if not parts:
            raise fields.error("question_decomposition", "at least one step", [])
        answers = [part.text("answer").strip() for part in parts]
        places = [_place(part, len(paragraphs)) for part in parts]
        asked = [question_of(part.text("question"), answers[:number]) for number, part in enumerate(parts)]
        for number, (question, answer, place) in enumerate(zip(asked, answers, places)):
            kept = self.kept(paragraphs, place, f"{own} {number}")
            others = [n for n in range(len(parts)) if n != number and places[n] in kept]
            step, further = Row(self.name, {"question": question}, index), [(asked[n], answers[n]) for n in others]
            context = joined([paragraphs[i] for i in kept])
            yield self.answered(step, context, [answer], f"{self.name}/{own}:{number}", further), paragraphs[place]


def _place(step: Row, count: int) -> int:
    place = step.optional("paragraph_support_idx")
    if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < count:
        raise step.error("paragraph_support_idx", f"the number of one of {count} paragraphs", place)
    return place


def question_of(text: str, answers: Sequence[str]) -> str:
    """A step's question as a sentence.

    Args:
        answers: of the steps before it, which "#1", "#2", ... stand for; a number beyond them stays.
    """
    subject, marked, relation = (part.strip() for part in text.partition(">>"))
    if marked:
        text = SENTENCES.get(relation, f"What is the {relation} of {{}}?").replace("{}", subject)
    known = {f"#{number}": answer for number, answer in enumerate(answers, start=1)}
    text = re.sub(r"#\d+", lambda found: known.get(found[0], found[0]), " ".join(text.split()))
    text = re.sub(r"\s+([?,.;'])", r"\1", text)
    return text[:1].upper() + text[1:]
