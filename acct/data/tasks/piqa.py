"""PIQA: which of two ways reaches a goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Task


class PIQA(Task):
    """Hub rows: goal, sol1, sol2, label (0 or 1). Context: "Question: " and the goal; query: "Answer:"."""

    name = "piqa"
    metric = "accuracy"
    kind = "choice"
    contextual = False
    default_examples = 1000

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        solutions = (fields.text("sol1").strip(), fields.text("sol2").strip())
        return self.choice(fields, f"Question: {fields.text('goal').strip()}", "Answer:", solutions, fields.label("label", 2))
