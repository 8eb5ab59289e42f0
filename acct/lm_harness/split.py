"""Where a prompt of lm-eval ends being context and begins being query.

lm-eval hands over one string; a transfer needs two parts. If the document holds the passage (field `context`) and the prompt shows it
verbatim, everything up to the passage's end and the blanks after it is context: few-shot examples, system message and chat header
included. The rest is the query, and the two are tokenised apart, as everywhere in this package (spec 7). Any other prompt is context
but for its last `prompts.query_tokens` tokens (spec 8).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acct.data.prompts import EncodedExample, PromptOptions, bos_ids, plain_ids, truncated, without_bos
from acct.errors import InputError

logger = logging.getLogger(__name__)
PROTOCOL = "lm-eval"


def encoded(
    name: str, context_ids: Sequence[int], query_ids: Sequence[int], candidate_ids: Sequence[Sequence[int]], *,
    bare_query_ids: Sequence[int] | None = None, dropped: int = 0, keeps: str = "tail",
) -> EncodedExample:  # fmt: skip
    """Token ids as an example that methods accept; its kind is "perplexity" in name only: the caller scores it.

    Args:
        context_ids: empty where there is nothing to transfer. bare_query_ids: None for the query itself.
    """
    context, query, candidates = tuple(context_ids), tuple(query_ids), tuple(map(tuple, candidate_ids))
    return EncodedExample(
        id=name, task=name.partition("/")[0], kind="perplexity", context_ids=context, query_ids=query,
        bare_query_ids=query if bare_query_ids is None else tuple(bare_query_ids), candidate_ids=candidates,
        score_from=(0,) * len(candidates), gold=None, answers=(), answer_ids=(), protocol=PROTOCOL, style="base",
        dropped_tokens=dropped, truncation_keeps=keeps,
        prompt_hash=hashlib.sha256(repr((PROTOCOL, context, query)).encode()).hexdigest()[:16],
    )  # fmt: skip


@dataclass
class Splitter:
    """Encodes lm-eval's prompts with the target's tokenizer.

    Attributes:
        options: limits of the context and the query's length. passage_field: the document's field that holds the passage; "" for none.
    """

    tokenizer: Any
    options: PromptOptions
    passage_field: str = "context"
    _warned: set[str] = field(default_factory=set)

    def passage(self, doc: Any, prompt: str, task: str) -> str | None:
        """The document's passage as it stands in the prompt, None where the prompt is not to be split there."""
        found = doc.get(self.passage_field) if isinstance(doc, Mapping) else None
        if not self.passage_field or not isinstance(found, str) or not found.strip():
            return None
        found = found.strip()
        if found not in prompt or not prompt[prompt.rfind(found) + len(found) :].strip():
            if task not in self._warned:
                self._warned.add(task)
                logger.warning(
                    "%s: documents have a field %r that the prompt does not show as it is with a question after it; the whole prompt is "
                    "context. passage_field='' silences this.", task, self.passage_field,
                )  # fmt: skip
            return None
        return found

    def encode(self, name: str, prompt: str, passage: str | None, continuations: Sequence[str] = ()) -> EncodedExample:
        """Ids of a prompt and of the texts whose likelihood is asked for.

        Args:
            prompt: as lm-eval renders it, without blanks at its end. passage: part of it, or None. continuations: with their delimiter.
        Returns:
            An example without context ids where the prompt has fewer than two tokens: there is nothing to transfer, and
            `bare_query_ids` is what the answering model reads.
        Raises:
            InputError: an empty continuation, or a limit that leaves no room for the context.
        """
        candidates = [plain_ids(self.tokenizer, text) for text in continuations]
        if not all(candidates):
            raise InputError(f"{name}: continuation {[bool(ids) for ids in candidates].index(False)} has no tokens: nothing to score.")
        bos, text, options = bos_ids(self.tokenizer), without_bos(prompt, self.tokenizer), self.options
        if passage is not None:
            head, rest = text[: text.rfind(passage)], text[text.rfind(passage) + len(passage) :]
            query = rest.lstrip()
            blanks = rest[: len(rest) - len(query)]
            try:
                context, dropped = truncated(
                    passage, lambda body: bos + plain_ids(self.tokenizer, head + body + blanks), self.tokenizer, options
                )
            except InputError as error:
                raise InputError(f"{name}: {error}") from error
            query_ids = plain_ids(self.tokenizer, query)
            bare = bos + plain_ids(self.tokenizer, head) + query_ids
            return encoded(
                name, context, query_ids, candidates, bare_query_ids=bare, dropped=dropped, keeps=options.truncation_keeps
            )  # fmt: skip
        ids = plain_ids(self.tokenizer, text)
        if len(bos) + len(ids) < 2 or not ids:
            return encoded(name, (), ids or self.prefix, candidates, bare_query_ids=(bos + ids) or self.prefix)
        split = max(len(ids) - options.query_tokens, 0 if bos else 1)
        return self.cut(name, bos, ids[:split], ids[split:], candidates)

    def cut(
        self, name: str, head: Sequence[int], body: Sequence[int], query: Sequence[int], candidates: Sequence[Sequence[int]]
    ) -> EncodedExample:
        """An example of ids; the context keeps its tail where it is too long, after the head (BOS)."""
        limit = self.options.max_context_tokens
        dropped = 0 if limit is None else max(len(head) + len(body) - limit, 0)
        context = (*head, *body[min(dropped, len(body)) :])
        return encoded(name, context, query, candidates, bare_query_ids=(*head, *query), dropped=dropped)

    @property
    def prefix(self) -> tuple[int, ...]:
        """What stands before a text without a prompt, as in lm-eval: BOS, or EOS where the tokenizer has none."""
        return bos_ids(self.tokenizer) or (int(self.tokenizer.eos_token_id),)
