"""Blanks in plain text: a training set for any documents, without questions of their own; the answer is generated, token F1.

`data.also={text_cloze: SHARE}` trains an interface on prose where a data set with questions knows only texts of one kind. The context is a
paragraph among others of its row, in random order, as many as a drawn number of words holds. What is asked is one of the
paragraph's sentences, or the words around the blank in it, in which a name or a number is replaced by "_"; that is the answer. Other
blanks of the same context are further questions on it. [ours]
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Row, joined
from acct.data.tasks.paragraphs import AmongParagraphs
from acct.errors import DataError

_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[]?[A-Z0-9])")
_NAME = r"[A-Z][\w'’-]*\w(?:\s+(?:of|the|and|de|von|van)(?=\s+[A-Z])|\s+[A-Z][\w'’-]*\w|\s+\d{1,4}\b(?![.,]?\d))*"
_NUMBER = r"\$?\d[\d,]*(?:\.\d+)?(?:\s?%|\s+(?:million|billion|percent|km|miles|years)\b)?"
_SPAN = re.compile(rf"(?<![\w$])(?:{_NAME}|{_NUMBER})(?!\w)")
BLANK, ASK = "_", "Fill the blank:"


@dataclass(frozen=True)
class TextCloze(AmongParagraphs):
    """Rows with `text` (paragraphs are separated by line breaks), or with paragraphs[{paragraph_text}] as MuSiQue's.

    Attributes:
        paragraph_words: shorter paragraphs are asked nothing. around: most words that a question shows on either side of its blank.
        answer_words: longer names are not asked for. blanks: most questions of a paragraph, its own among them.
    """

    paragraph_words: int = field(default=30, metadata={"paper": "silent: not a set of the paper"})
    around: int = field(default=12, metadata={"paper": "silent: not a set of the paper"})
    answer_words: int = field(default=5, metadata={"paper": "silent: not a set of the paper"})
    blanks: int = field(default=4, metadata={"paper": "silent: not a set of the paper"})

    name = "text_cloze"

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.paragraph_words, self.around, self.answer_words, self.blanks) < 1:
            raise DataError("paragraph_words, around, answer_words and blanks must be at least 1.")

    def examples(self, rows: Sequence[Mapping[str, Any]], tokenizer: Any = None) -> list[Example]:
        """One for every paragraph in which something can be asked, in order; a paragraph that comes again is not asked again."""
        found: dict[str, Example] = {}
        for index, row in enumerate(rows):
            for example, paragraph in self.asked(row, index):
                found.setdefault(paragraph, example)
        return list(found.values())

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        """The first paragraph's.

        Raises:
            DataError: nothing can be asked in any paragraph.
        """
        first = next(self.asked(row, index), None)
        if first is None:
            expected = f"a paragraph of {self.paragraph_words} words with a name or a number"
            raise self.row(row, index).error("text", expected, row.get("text"))
        return first[0]

    def asked(self, row: Mapping[str, Any], index: int) -> Iterator[tuple[Example, str]]:
        """The examples of a row, each with its paragraph."""
        fields = self.row(row, index)
        own = fields.optional("id") or f"{index:05d}"
        paragraphs = paragraphs_of(fields)
        questions = [self._questions(paragraph, f"{self.seed} {own} {number}") for number, paragraph in enumerate(paragraphs)]
        for number, (paragraph, mine) in enumerate(zip(paragraphs, questions)):
            if not mine:
                continue
            kept = self.kept(paragraphs, number, f"{own} {number}")
            question, answer = mine[0]
            step = Row(self.name, {"question": question}, index)
            further = [*mine[1:], *(pair for other in kept if other != number for pair in questions[other])]
            context = joined([paragraphs[i] for i in kept])
            yield self.answered(step, context, [answer], f"{self.name}/{own}:{number}", further), paragraph

    def _questions(self, paragraph: str, name: str) -> list[tuple[str, str]]:
        """Questions of a paragraph with their answers, in random order: of different sentences first."""
        if len(paragraph.split()) < self.paragraph_words:
            return []
        draw = random.Random(name)
        by_sentence = []
        for sentence in _SENTENCE.split(paragraph):
            found = [(span, answer) for span, answer in spans(sentence) if len(answer.split()) <= self.answer_words]
            pairs = [(f"{ASK} {self._blanked(sentence, *span)}", answer) for span, answer in found]
            draw.shuffle(pairs)
            by_sentence.append(pairs)
        draw.shuffle(by_sentence)
        rounds = [pairs[turn] for turn in range(max(map(len, by_sentence), default=0)) for pairs in by_sentence if turn < len(pairs)]
        return rounds[: self.blanks]

    def _blanked(self, sentence: str, start: int, end: int) -> str:
        before, after = sentence[:start], sentence[end:]
        left, right = list(re.finditer(r"\S+", before)), list(re.finditer(r"\S+", after))
        first = left[-self.around].start() if len(left) > self.around else 0
        last = right[self.around - 1].end() if len(right) > self.around else len(after)
        return f"{before[first:]}{BLANK}{after[:last]}".strip()


def paragraphs_of(fields: Row) -> list[str]:
    """A row's paragraphs, each on one line."""
    if fields.optional("paragraphs") is not None:
        found = [Row(fields.task, one, fields.index).text("paragraph_text", empty=True) for one in fields.items("paragraphs")]
    else:
        found = fields.text("text", empty=True).split("\n")
    return [" ".join(one.split()) for one in found if one.strip()]


def spans(sentence: str) -> list[tuple[tuple[int, int], str]]:
    """Places of the names and numbers of a sentence, with their texts; not its first word, which is capital in any case, and nothing that
    the sentence holds twice."""
    found = []
    for match in _SPAN.finditer(sentence):
        start, text = match.start(), re.sub(r"['’]s$", "", match[0])
        if start == 0:
            number = re.search(r"(?<=\s)\d+$", text)  # "In 1867"
            start, text = (number.start(), number[0]) if number else (0, "")
        if len(text) > 1 and sentence.count(text) == 1:
            found.append(((start, start + len(text)), text))
    return found
