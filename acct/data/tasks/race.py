"""RACE: an article of a school examination, a question or cloze sentence and four options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Task, as_question

LETTERS = ("A", "B", "C", "D")


class Race(Task):
    """Hub rows: article, question, options[4], answer ("A".."D"). The options are scored, not shown (as in lm-eval)."""

    name = "race"
    metric = "accuracy"
    kind = "choice"
    contextual = True
    default_examples = 1000

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        options = [option.strip() for option in fields.texts("options", length=len(LETTERS))]
        if not all(options):
            raise fields.error("options", "four texts that are not empty", options)
        gold = fields.one_of("answer", LETTERS)
        return self.choice(fields, fields.text("article").strip(), as_question(fields.text("question")), options, gold)
