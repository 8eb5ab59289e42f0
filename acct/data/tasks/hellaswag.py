"""HellaSwag: which of four endings continues a description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Task


def without_markup(text: str) -> str:
    """WikiHow rows carry tags: " [title]" becomes a full stop, every other "[tag]" goes (as in lm-eval)."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return re.sub(r" {2,}", " ", text).strip()


class HellaSwag(Task):
    """Hub rows: ctx, endings[4], label ("0".."3"; the test split has none). No query text: the prompt's end is the query."""

    name = "hellaswag"
    metric = "accuracy"
    kind = "choice"
    contextual = False
    default_examples = 1000

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        endings = [without_markup(ending) for ending in fields.texts("endings", length=4)]
        if not all(endings):
            raise fields.error("endings", "four texts that are not empty", endings)
        return self.choice(fields, without_markup(fields.text("ctx")), "", endings, fields.label("label", 4))
