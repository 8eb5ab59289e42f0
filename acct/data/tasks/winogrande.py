"""WinoGrande: which of two names fills the blank, judged by the likelihood of what follows it (partial evaluation)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Task


class WinoGrande(Task):
    """Hub rows: sentence (one "_"), option1, option2, answer ("1" or "2").

    Context: the text before the blank. A candidate is an option followed by the text after the blank, and only the latter is scored:
    it is the same text for both, so the names' own frequencies do not count.
    """

    name = "winogrande"
    metric = "accuracy"
    kind = "choice"
    contextual = False
    default_examples = 1000

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        sentence = fields.text("sentence")
        if sentence.count("_") != 1:
            raise fields.error("sentence", 'a sentence with exactly one "_"', sentence)
        before, after = sentence.split("_")
        if not before.strip() or not after.strip():
            raise fields.error("sentence", 'text on both sides of "_"', sentence)
        options = (fields.text("option1").strip(), fields.text("option2").strip())
        gold = fields.label("answer", 2, first=1)
        return self.choice(fields, before.rstrip(), "", options, gold, scored_suffix=after.rstrip())
