"""PubMedQA: an abstract without its conclusion, and whether the title's question is answered by yes, no or maybe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Task, as_question, joined

DECISIONS = ("yes", "no", "maybe")


class PubMedQA(Task):
    """Hub rows (config pqa_labeled): pubid, question, context{contexts[]}, final_decision."""

    name = "pubmed_qa"
    metric = "accuracy"
    kind = "choice"
    contextual = True
    default_examples = 500

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        context = joined(fields.texts("context.contexts"))
        if not context:
            raise fields.error("context.contexts", "at least one passage", fields.optional("context.contexts"))
        gold = fields.one_of("final_decision", DECISIONS)
        own = fields.optional("pubid")
        name = fields.id if own is None else f"{self.name}/{own}"
        return self.choice(fields, context, as_question(fields.text("question")), DECISIONS, gold, id=name)
