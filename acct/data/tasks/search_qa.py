"""SearchQA: a clue and the snippets that a search engine gave for it; the answer is generated, token F1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Task, as_question, joined


class SearchQA(Task):
    """Hub rows: question, answer, search_results{snippets[], ...}. Context: the snippets, one a line."""

    name = "search_qa"
    metric = "f1"
    kind = "generate"
    contextual = True
    default_examples = 1000

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        context = joined(fields.texts("search_results.snippets", nulls=True))  # a page without a snippet is null on the hub
        if not context:
            raise fields.error("search_results.snippets", "at least one snippet", fields.optional("search_results.snippets"))
        return Example(
            id=fields.id,
            task=self.name,
            kind="generate",
            context=context,
            query=as_question(fields.text("question")),
            answers=(fields.text("answer").strip(),),
            candidates=(),
            gold=None,
            scored_suffix=None,
            contextual=True,
        )
