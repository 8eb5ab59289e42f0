"""SQuAD: a question on a paragraph, answered by a span of it; generated, token F1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import QuestionAnswering


class SQuAD(QuestionAnswering):
    """Hub rows (`rajpurkar/squad`): id, title, context, question, answers{text[], answer_start[]}. Every text counts as right.

    Rows without an answer (SQuAD 2.0) are refused: nothing could be scored.
    """

    name = "squad"

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        context = fields.text("context").strip()
        answers = fields.texts("answers.text")
        if not any(answer.strip() for answer in answers):
            raise fields.error("answers.text", "at least one answer", answers)
        return self.answered(fields, context, answers)
