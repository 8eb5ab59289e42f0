"""MuSiQue: a question that takes two to four steps over twenty paragraphs; the answer is generated, token F1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import QuestionAnswering, joined


class MuSiQue(QuestionAnswering):
    """Rows of MuSiQue-Ans: id, question, answer, answer_aliases[], paragraphs[{title, paragraph_text}], answerable.

    One paragraph a line, its title before a colon, in the row's order. [ours] Rows of MuSiQue-Full that cannot be answered are refused.
    """

    name = "musique"

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        if fields.optional("answerable") is False:
            raise fields.error("answerable", "true (the answerable part, MuSiQue-Ans)", False)
        paragraphs = fields.items("paragraphs")
        if not paragraphs or not all(isinstance(one, Mapping) for one in paragraphs):
            raise fields.error("paragraphs", "a list of objects with title and paragraph_text", paragraphs)
        parts = [self.row(one, index) for one in paragraphs]
        context = joined([f"{part.text('title').strip()}: {part.text('paragraph_text').strip()}" for part in parts])
        aliases = fields.texts("answer_aliases") if fields.optional("answer_aliases") is not None else []
        return self.answered(fields, context, [fields.text("answer"), *aliases])
