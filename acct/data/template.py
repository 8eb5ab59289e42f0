"""A tokenizer's own chat template, cut once into the text before the context and the text after the question (spec 7)."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from typing import Any

from acct.errors import ConfigError

_STRFTIME = re.compile(r"""strftime_now\(\s*(?P<quote>['"])(?P<format>.*?)(?P=quote)\s*\)""")
_CONTEXT, _QUERY = "acctcontextplaceholder", "acctqueryplaceholder"


@dataclass(frozen=True)
class ChatFrame:
    """Text around the one user message of a conversation.

    Attributes:
        before: from the first token to the user message. after: from the end of the user message to the end of the assistant's header.
    """

    before: str
    after: str


def chat_frame(tokenizer: Any, separator: str, system: str | None, date: datetime.date) -> ChatFrame:
    """Render the template once with placeholders and cut it at them.

    Args:
        tokenizer: has a chat template. separator: text between context and question inside the user message.
        system: a system message, None for the template's own default. date: what a template that prints today's date shows, so that
            prompts do not change from day to day. Thinking is switched off where the template knows `enable_thinking`.
    Raises:
        ConfigError: the template drops, repeats or changes the user message.
    """
    template = template_text(tokenizer)
    options: dict[str, Any] = {}
    if "enable_thinking" in template:
        options["enable_thinking"] = False
    if "date_string" in template:
        options["date_string"] = date.strftime("%d %b %Y")
    if "strftime_now" in template:  # newer transformers turn a function among the options into text, so the calls are answered here
        options["chat_template"] = _STRFTIME.sub(lambda call: json.dumps(date.strftime(call["format"])), template)
    messages = [{"role": "user", "content": _CONTEXT + separator + _QUERY}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    before, found, rest = rendered.partition(_CONTEXT)
    between, second, after = rest.partition(_QUERY)
    if not found or not second or between != separator or _CONTEXT in after or _QUERY in before + after:
        raise ConfigError(
            f"the chat template of {getattr(tokenizer, 'name_or_path', 'the tokenizer')!r} must show the user message once and unchanged, "
            f"got {rendered[:200]!r}. Set the prompt style to 'base' to do without it."
        )
    return ChatFrame(before, after)


def template_text(tokenizer: Any) -> str:
    """The source of the default template, "" where there is none."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):  # named templates
        template = template.get("default", "")
    return template or ""
