"""BoolQ: a passage and a question that it answers with yes or no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Task, as_question


class BoolQ(Task):
    """Hub rows: passage, question, answer (true or false). Candidates: yes, no."""

    name = "boolq"
    metric = "accuracy"
    kind = "choice"
    contextual = True
    default_examples = 1000

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        gold = 0 if fields.truth("answer") else 1
        return self.choice(fields, fields.text("passage").strip(), as_question(fields.text("question")), ("yes", "no"), gold)
