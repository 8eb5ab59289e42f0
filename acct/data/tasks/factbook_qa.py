"""Factbook-QA: a question on one field of the World Factbook among snippets of other fields; the answer is generated, token F1.

A stand-in for SearchQA on real text that may be redistributed; `acct.data.factbook` makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import QuestionAnswering, Row
from acct.data.tasks.search_qa import snippets


class FactbookQA(QuestionAnswering):
    """Rows in SearchQA's schema: question, answer, search_results{snippets[], titles[]}; with an id of their own. One snippet a line.

    Training rows may have `further`, a list of {question, answer} on the same snippets.
    """

    name = "factbook_qa"

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        context = snippets(fields)
        if not context:
            raise fields.error("search_results.snippets", "at least one snippet", fields.optional("search_results.snippets"))
        more = [] if fields.optional("further") is None else fields.items("further")
        parts = [Row(f"{self.name} (further question {number})", one, index) for number, one in enumerate(more)]
        further = [(part.text("question"), part.text("answer")) for part in parts]
        return self.answered(fields, context, [fields.text("answer")], further=further)
