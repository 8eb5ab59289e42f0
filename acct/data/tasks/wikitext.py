"""WikiText: perplexity of the continuation of a window of running text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acct.data.examples import Example
from acct.data.tasks.base import Task
from acct.data.tokens import token_ends
from acct.errors import ConfigError

_TITLE = re.compile(r"^\s*= [^=].*[^=] =\s*$")


@dataclass(frozen=True)
class WikiText(Task):
    """Hub rows: text, one line of an article each, "" between paragraphs.

    Rows are joined into documents and cut into windows of a fixed number of tokens, without overlap; a shorter rest is left out. The first
    part of a window is the context, the rest is scored. Windows are kept as text: who cuts with one tokenizer has the same examples for
    every direction, and each direction tokenises the two parts apart, as everywhere.

    Attributes:
        window_tokens: tokens of a window. context_tokens: how many of them are the context. [ours]
        separate_articles: a title line (" = Title = ") starts a new document; else the whole split is one document. [ours]
    """

    window_tokens: int = field(default=256, metadata={"paper": "silent: the test split of WikiText-2 gives 500 windows with room to spare"})
    context_tokens: int = field(default=192, metadata={"paper": "silent: three quarters are read, one quarter is scored"})
    separate_articles: bool = field(default=True, metadata={"paper": "silent: no window mixes two articles"})

    name = "wikitext"
    metric = "perplexity"
    kind = "perplexity"
    contextual = False
    default_examples = 500

    def __post_init__(self) -> None:
        if not 1 <= self.context_tokens < self.window_tokens:
            raise ConfigError(
                f"context_tokens must lie in [1, window_tokens), got {self.context_tokens} of {self.window_tokens}: the rest is scored."
            )

    def from_row(self, row: Mapping[str, Any], index: int) -> Example:
        """A row that is itself one window, cut between words in the proportion of context_tokens to window_tokens."""
        fields = self.row(row, index)
        text = fields.text("text").strip()
        ends = token_ends(text, None)
        if len(ends) < 2:
            raise fields.error("text", "at least two words, one to read and one to score", text)
        cut = min(max(len(ends) * self.context_tokens // self.window_tokens, 1), len(ends) - 1)
        return self._window(fields.id, text[: ends[cut - 1]], text[ends[cut - 1] :])

    def examples(self, rows: Sequence[Mapping[str, Any]], tokenizer: Any = None) -> list[Example]:
        """The windows of a split, in order.

        Args:
            rows: the split. tokenizer: counts the tokens; None counts words between blanks (WikiText's own tokens).
        """
        windows: list[Example] = []
        for text in self.documents(rows):
            ends = token_ends(text, tokenizer)
            for start in range(0, len(ends) - self.window_tokens + 1, self.window_tokens):
                first = ends[start - 1] if start else 0
                cut, last = ends[start + self.context_tokens - 1], ends[start + self.window_tokens - 1]
                context, continuation = text[first:cut], text[cut:last]
                if context.strip() and continuation.strip():
                    windows.append(self._window(f"{self.name}/{len(windows):05d}", context, continuation))
        return windows

    def documents(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """The rows joined, blank rows left out, a new document at each title line where articles are kept apart."""
        documents: list[list[str]] = []
        for index, row in enumerate(rows):
            line = self.row(row, index).text("text", empty=True).strip()
            if not line:
                continue
            if not documents or (self.separate_articles and _TITLE.match(line)):
                documents.append([])
            documents[-1].append(line)
        return ["\n".join(lines) for lines in documents]

    def _window(self, name: str, context: str, continuation: str) -> Example:
        return Example(
            id=name,
            task=self.name,
            kind="perplexity",
            context=context,
            query="",
            answers=(),
            candidates=(continuation,),
            gold=None,
            scored_suffix=None,
            contextual=False,
        )
