"""SearchQA: a clue and the snippets that a search engine gave for it; the answer is generated, token F1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acct.data.examples import Example
from acct.data.tasks import mrqa
from acct.data.tasks.base import QuestionAnswering, Row, joined

SUBSET = "SearchQA"


@dataclass(frozen=True)
class SearchQA(QuestionAnswering):
    """Hub rows: question, answer, search_results{snippets[], titles[], ...}; or rows of the MRQA form (`acct.data.tasks.mrqa`).

    The context is the snippets, one a line. Rows of the two forms are not the same examples: MRQA keeps the questions whose answer stands
    in the snippets, shortens the snippets, and has no test split.

    Attributes:
        titles: each page's title on a line of its own before its snippets. [ours]
    """

    titles: bool = field(default=False, metadata={"paper": "silent: snippets alone are what the hub's schema calls the text"})

    name = "search_qa"

    def examples(self, rows: Sequence[Mapping[str, Any]], tokenizer: Any = None) -> list[Example]:
        """Every example of a split, in order; a row of the MRQA form may hold several, or belong to another subset."""
        return [self.from_row(row, index) for index, row in mrqa.flattened(rows, SUBSET)]

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        marked = mrqa.is_mrqa(row)
        path = "context" if marked else "search_results.snippets"
        context = mrqa.passages(fields.text(path), self.titles) if marked else snippets(fields, self.titles)
        if not context:
            raise fields.error(path, "at least one snippet", fields.optional(path))
        answers = mrqa.accepted(fields) if marked else (fields.text("answer"),)
        return self.answered(fields, context, answers, mrqa.own_id(fields) if marked else fields.id)


def snippets(fields: Row, titles: bool = False) -> str:
    """The context of a row in the hub's fields: its snippets, one a line; with `titles` each after the title of its page."""
    if not titles:
        return joined(fields.texts("search_results.snippets", nulls=True))  # a page without a snippet is null on the hub
    found, names = (fields.texts(f"search_results.{name}", fill="") for name in ("snippets", "titles"))
    if len(names) != len(found):
        raise fields.error("search_results.titles", f"one title for each of {len(found)} snippets", names)
    return joined([part for pair in zip(names, found) for part in pair])
