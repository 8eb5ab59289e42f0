"""WikiHop: which candidate stands in a relation to a subject, when the supports must be combined to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Task, as_question, joined


class WikiHop(Task):
    """Hub rows: id, query ("relation subject"), supports[], candidates[], answer. Question: the relation in words, then the subject."""

    name = "wiki_hop"
    metric = "accuracy"
    kind = "choice"
    contextual = True
    default_examples = 1000

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        relation, _, subject = fields.text("query").strip().partition(" ")
        if not subject.strip():
            raise fields.error("query", '"relation subject"', fields.text("query"))
        question = as_question(f"{relation.replace('_', ' ')} {subject.replace('_', ' ').strip()}")
        candidates = [candidate.strip() for candidate in fields.texts("candidates")]
        answer = fields.text("answer").strip()
        if answer not in candidates or not all(candidates):
            raise fields.error("answer", f"one of the {len(candidates)} candidates, none of them empty", answer)
        context = joined(fields.texts("supports"))
        if not context:
            raise fields.error("supports", "at least one passage", fields.optional("supports"))
        own = fields.optional("id")
        name = f"{self.name}/{own}" if isinstance(own, str) and own else fields.id
        return self.choice(fields, context, question, candidates, candidates.index(answer), id=name)
