"""MMLU: a question with four lettered choices; the letters' likelihoods are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Task

LETTERS = ("A", "B", "C", "D")


class MMLU(Task):
    """Hub rows: question, choices[4], answer (0..3). Context: question and choices; query: "Answer:"."""

    name = "mmlu"
    metric = "accuracy"
    kind = "choice"
    contextual = False
    default_examples = 1000

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        choices = fields.texts("choices", length=len(LETTERS))
        lines = [f"Question: {fields.text('question').strip()}", *(f"{letter}. {text.strip()}" for letter, text in zip(LETTERS, choices))]
        return self.choice(fields, "\n".join(lines), "Answer:", LETTERS, fields.label("answer", len(LETTERS)))
