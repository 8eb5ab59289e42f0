"""From an example to the token ids of its context, query and candidates: one protocol for every method (spec 7; paper F.1).

Protocols
    completion-v2   contextual tasks.
                    base: [BOS] context "\\n\\n" | query "\\nAnswer: The answer is" (" The answer is" after an existing "Answer:").
                    chat: template up to the user message, context "\\n\\n" | query, end of the user turn, assistant header,
                    "Answer: The answer is" as the beginning of the assistant's turn.
    plain-v1        general tasks: [BOS] and the prompt. Where there is query text: context "\\n" | query. Where there is none, the last
                    tokens of the prompt are the query.

The bar is a fixed boundary: the parts are tokenised apart and no token ever crosses it, so that context ids do not depend on the query.
Candidates are tokenised as " " + text, after the query and apart from it. The BOS token stands exactly once, at position 0, or not at all
where the tokenizer has none.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from acct.data.examples import Example, Kind
from acct.data.template import chat_frame, template_text
from acct.data.tokens import token_ends
from acct.errors import ConfigError, InputError

PromptStyle = Literal["chat", "base"]
COMPLETION, PLAIN = "completion-v2", "plain-v1"


@dataclass(frozen=True)
class PromptOptions:
    """Everything that shapes a prompt beside the example and the tokenizer.

    Attributes:
        cue: begins the answer of contextual tasks. answer_marker: what introduces an answer; not repeated where the query ends with it.
        context_separator, plain_separator: text that closes the context of contextual tasks, and of general tasks with query text.
        query_tokens: tokens at the prompt's end that are the query of a general task without query text.
        max_context_tokens: longest context, template and BOS included; None for no limit.
        truncation_keeps: the end of the context's text that is kept when it is too long. General tasks without query text always keep the
            tail: what is scored continues it.
        system: a system message for chat templates; None for the template's default.
        date: the day that a template which prints today's date shows, as YYYY-MM-DD.
    """

    cue: str = "The answer is"
    answer_marker: str = "Answer:"
    context_separator: str = "\n\n"
    plain_separator: str = "\n"
    query_tokens: int = field(default=1, metadata={"paper": "silent: one token, so that the rest of the prompt is context"})
    max_context_tokens: int | None = field(default=None, metadata={"paper": "silent: no truncation; a limit is recorded per example"})
    truncation_keeps: Literal["head", "tail"] = field(default="head", metadata={"paper": "silent: passages state their topic first"})
    system: str | None = None
    date: str = "2024-07-26"

    def __post_init__(self) -> None:
        if self.query_tokens < 1:
            raise ConfigError(f"query_tokens must be at least 1, got {self.query_tokens}: an empty query has no logits to score from.")
        if self.max_context_tokens is not None and self.max_context_tokens < 1:
            raise ConfigError(f"max_context_tokens must be at least 1 or null, got {self.max_context_tokens}.")
        if self.truncation_keeps not in ("head", "tail"):
            raise ConfigError(f"truncation_keeps must be 'head' or 'tail', got {self.truncation_keeps!r}.")


@dataclass(frozen=True)
class EncodedExample:
    """Token ids of one example.

    Attributes:
        context_ids: N >= 1 ids that the source reads. query_ids: Q >= 1 ids that the target reads after it.
        bare_query_ids: the query as it stands when there is no context: BOS or the template's head, then `query_ids`.
        candidate_ids: ids of each candidate (or of the one continuation), suffix included. score_from: index of each one's first scored id.
        answer_ids: the canonical answer as a continuation of the query; empty for perplexity.
        dropped_tokens: context tokens lost to truncation; `truncation_keeps` says which end stayed.
        prompt_hash: 16 hex digits over all ids but `further`, score_from and the protocol.
        further: query and answer ids of other questions on the same context.
    """

    id: str
    task: str
    kind: Kind
    context_ids: tuple[int, ...]
    query_ids: tuple[int, ...]
    bare_query_ids: tuple[int, ...]
    candidate_ids: tuple[tuple[int, ...], ...]
    score_from: tuple[int, ...]
    gold: int | None
    answers: tuple[str, ...]
    answer_ids: tuple[int, ...]
    protocol: str
    style: PromptStyle
    dropped_tokens: int
    truncation_keeps: str
    prompt_hash: str
    further: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()


def prompt_style(tokenizer: Any) -> PromptStyle:
    """ "chat" where the tokenizer has a chat template, else "base"."""
    return "chat" if template_text(tokenizer) else "base"


def encode(example: Example, tokenizer: Any, style: PromptStyle | None = None, options: PromptOptions | None = None) -> EncodedExample:
    """Token ids of an example.

    Args:
        example: any example. tokenizer: the target's; its ids serve both models. style: None chooses by `prompt_style`.
        options: None for the defaults.
    Raises:
        InputError: the context, the query or a candidate is empty, or cannot be brought under max_context_tokens.
    """
    options = options or PromptOptions()
    style = style or prompt_style(tokenizer)
    try:
        return _encode(example, tokenizer, style, options)
    except InputError as error:
        raise InputError(f"{example.id}: {error}") from error


def encode_context(context: str, tokenizer: Any, style: PromptStyle | None = None, options: PromptOptions | None = None) -> tuple[int, ...]:
    """Context ids of the contextual protocol for a free text, equal to those that `encode` gives."""
    return _context(context, tokenizer, style or prompt_style(tokenizer), options or PromptOptions())[0]


def encode_query(query: str, tokenizer: Any, style: PromptStyle | None = None, options: PromptOptions | None = None) -> tuple[int, ...]:
    """Query ids of the contextual protocol for a free text, cue included, equal to those that `encode` gives."""
    return _query(query, tokenizer, style or prompt_style(tokenizer), options or PromptOptions())


def check_window(examples: Iterable[EncodedExample], window: int, model: str, answer_tokens: int = 0) -> None:
    """Refuse an example that needs more positions than a model was trained with: it would answer, and from nonsense.

    Args:
        window: positions of the model. model: its name in the message. answer_tokens: longest answer that is generated or read.
    Raises:
        InputError: the first such example, with what it needs and the limit that would make it fit.
    """
    for example in examples:
        answer = max((len(ids) for ids in example.candidate_ids), default=answer_tokens)
        needed = len(example.context_ids) + len(example.query_ids) + answer
        if needed > window:
            limit = window - len(example.query_ids) - answer
            lengths = f"{len(example.context_ids)} + {len(example.query_ids)} + {answer}"
            raise InputError(
                f"{example.id}: context, query and answer take {lengths} tokens, the {model} reads at most {window}. "
                f"Set prompts.max_context_tokens to {limit} or less; what is cut is recorded."
            )


def _encode(example: Example, tokenizer: Any, style: PromptStyle, options: PromptOptions) -> EncodedExample:
    if example.contextual:
        context_ids, dropped = _context(example.context, tokenizer, style, options)
        query_ids = _query(example.query, tokenizer, style, options)
        head, protocol, keeps = _head_ids(tokenizer, style, options), COMPLETION, options.truncation_keeps
    else:
        context_ids, query_ids, dropped = _plain(example, tokenizer, options)
        head, protocol = bos_ids(tokenizer), PLAIN
        keeps = options.truncation_keeps if example.query else "tail"
    candidate_ids, score_from = _candidates(example, tokenizer)
    answer_ids = plain_ids(tokenizer, " " + example.answers[0]) if example.answers else ()
    further = [(_query(question, tokenizer, style, options), plain_ids(tokenizer, " " + answer)) for question, answer in example.further]
    hashed = json.dumps([protocol, style, context_ids, query_ids, candidate_ids, score_from])
    return EncodedExample(
        id=example.id,
        task=example.task,
        kind=example.kind,
        context_ids=context_ids,
        query_ids=query_ids,
        bare_query_ids=head + query_ids,
        candidate_ids=candidate_ids,
        score_from=score_from,
        gold=example.gold,
        answers=example.answers,
        answer_ids=answer_ids,
        protocol=protocol,
        style=style,
        dropped_tokens=dropped,
        truncation_keeps=keeps,
        prompt_hash=hashlib.sha256(hashed.encode()).hexdigest()[:16],
        further=tuple(further),
    )


def _context(text: str, tokenizer: Any, style: PromptStyle, options: PromptOptions) -> tuple[tuple[int, ...], int]:
    """Ids of the contextual protocol's first part, and the number of tokens dropped."""
    text = without_bos(text, tokenizer)
    if not text.strip():
        raise InputError("the context is empty: expected text to read, got none. Ask without a context by the no_context method.")
    _no_markup(text, "context", tokenizer, style)
    before = chat_frame(tokenizer, options.context_separator, options.system, _date(options)).before if style == "chat" else ""
    bos = () if style == "chat" else bos_ids(tokenizer)

    def whole(body: str) -> tuple[int, ...]:
        return bos + plain_ids(tokenizer, before + body + options.context_separator)

    return truncated(text, whole, tokenizer, options)


def _query(text: str, tokenizer: Any, style: PromptStyle, options: PromptOptions) -> tuple[int, ...]:
    """Ids of the contextual protocol's second part."""
    text = text.strip()
    if not text:
        raise InputError("the query is empty: expected a question, got none.")
    _no_markup(text, "query", tokenizer, style)
    asked = text.endswith(options.answer_marker)
    cue = options.cue if asked else f"{options.answer_marker} {options.cue}"
    if style == "chat":
        text += chat_frame(tokenizer, options.context_separator, options.system, _date(options)).after + cue
    else:
        text += (" " if asked else "\n") + cue
    return plain_ids(tokenizer, text)


def _plain(example: Example, tokenizer: Any, options: PromptOptions) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Context ids, query ids and the number of dropped tokens of a general task."""
    bos, text = bos_ids(tokenizer), without_bos(example.context, tokenizer)
    if not text.strip():
        raise InputError("the context is empty: expected the prompt up to the scored part, got none.")
    if example.query:
        context_ids, dropped = truncated(text, lambda body: bos + plain_ids(tokenizer, body + options.plain_separator), tokenizer, options)
        return context_ids, plain_ids(tokenizer, example.query), dropped
    ids = plain_ids(tokenizer, text)
    if len(bos) + len(ids) < 2:
        raise InputError(f"the prompt has {len(ids)} token(s): expected at least two, one to mount and one to ask with.")
    split = max(len(ids) - options.query_tokens, 0 if bos else 1)
    body, query_ids = ids[:split], ids[split:]
    dropped = 0
    if options.max_context_tokens is not None and len(bos) + len(body) > options.max_context_tokens:
        kept = max(options.max_context_tokens - len(bos), 0)
        dropped = len(body) - kept
        body = body[len(body) - kept :]
    return bos + body, query_ids, dropped


def truncated(text: str, whole: Callable[[str], tuple[int, ...]], tokenizer: Any, options: PromptOptions) -> tuple[tuple[int, ...], int]:
    """`whole(text)`, the text shortened at a token boundary until the ids fit; and how many ids fewer there are."""
    ids = whole(text)
    limit, full = options.max_context_tokens, len(ids)
    if limit is None or full <= limit:
        return ids, 0
    ends = token_ends(text, tokenizer)
    kept = len(ends) - (full - limit)
    while kept > 0:
        ids = whole(text[: ends[kept - 1]] if options.truncation_keeps == "head" else text[ends[-kept - 1] :])
        if len(ids) <= limit:
            return ids, full - len(ids)
        kept -= len(ids) - limit
    raise InputError(f"max_context_tokens = {limit} leaves no room for any text of the context ({full} tokens). Raise it.")


def _candidates(example: Example, tokenizer: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Ids of each candidate, and the index of its first scored id."""
    if example.kind == "perplexity":
        continuation = plain_ids(tokenizer, example.candidates[0])
        if not continuation:
            raise InputError("the continuation has no tokens: there is nothing to score.")
        return (continuation,), (0,)
    suffix = plain_ids(tokenizer, example.scored_suffix) if example.scored_suffix else ()
    ids, starts = [], []
    for candidate in example.candidates:
        own = plain_ids(tokenizer, " " + candidate) if candidate.strip() else ()
        if not own:
            raise InputError(f"candidate {len(ids)} is empty: there is nothing to score.")
        ids.append(own + suffix)
        starts.append(len(own) if suffix else 0)
    return tuple(ids), tuple(starts)


def _head_ids(tokenizer: Any, style: PromptStyle, options: PromptOptions) -> tuple[int, ...]:
    if style == "base":
        return bos_ids(tokenizer)
    return plain_ids(tokenizer, chat_frame(tokenizer, options.context_separator, options.system, _date(options)).before)


def plain_ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False, verbose=False))


def bos_ids(tokenizer: Any) -> tuple[int, ...]:
    return () if tokenizer.bos_token_id is None else (int(tokenizer.bos_token_id),)


def without_bos(text: str, tokenizer: Any) -> str:
    """The text without a BOS token written out at its beginning: the protocol adds the one that there is."""
    bos = tokenizer.bos_token
    while bos and text.startswith(bos):
        text = text[len(bos) :]
    return text


def _no_markup(text: str, part: str, tokenizer: Any, style: PromptStyle) -> None:
    """Refuse text that would be read as the template's own control tokens."""
    if style != "chat":
        return
    markup = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    for token in sorted(markup):
        if token in text and token in template_text(tokenizer):
            raise InputError(f"the {part} contains the control token {token!r} of the chat template: it would end the turn. Remove it.")


def _date(options: PromptOptions) -> datetime.date:
    try:
        return datetime.date.fromisoformat(options.date)
    except ValueError as error:
        raise ConfigError(f"the prompt date must be YYYY-MM-DD, got {options.date!r}.") from error
