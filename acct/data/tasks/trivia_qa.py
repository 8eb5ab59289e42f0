"""TriviaQA: a question, pages that may answer it, and an answer with its aliases; generated, token F1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from acct.data.examples import Example
from acct.data.tasks.base import QuestionAnswering, joined


@dataclass(frozen=True)
class TriviaQA(QuestionAnswering):
    """Hub rows (config rc): question, answer{value, aliases[]}, search_results{search_context[]}, entity_pages{wiki_context[]}.

    Attributes:
        passages: which pages make the context: "search" and "entity" take the one list, "first" takes the search results and, where
            there are none, the entity pages, "both" takes search results, then entity pages. [ours]
    """

    passages: Literal["first", "search", "entity", "both"] = field(
        default="first", metadata={"paper": "silent: search results exist for nearly every question of config rc"}
    )

    name = "trivia_qa"

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        fields = self.row(row, index)
        paths = {"search": "search_results.search_context", "entity": "entity_pages.wiki_context"}
        found = {name: joined(fields.texts(path, nulls=True)) if fields.optional(path) is not None else "" for name, path in paths.items()}
        match self.passages:
            case "first":
                context = found["search"] or found["entity"]
            case "both":
                context = joined(list(found.values()))
            case one:
                context = found[one]
        if not context:
            raise fields.error(" or ".join(paths.values()), f"passages (passages={self.passages!r})", None)
        value = fields.text("answer.value").strip()
        aliases = [alias.strip() for alias in fields.texts("answer.aliases") if alias.strip()]
        return self.answered(fields, context, [value, *aliases], fields.id)
