"""lm-eval's chat messages as this package's chat protocol renders them (spec 7)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from acct.data.prompts import PromptOptions
from acct.data.template import chat_frame, template_text
from acct.errors import ConfigError, InputError


def chat_prompt(messages: Sequence[Mapping[str, str]], tokenizer: Any, options: PromptOptions) -> str:
    """One user turn inside the template's frame, and what begins the assistant's turn.

    Args:
        messages: [system] user [assistant], as lm-eval gives them; the assistant's text is the beginning of the answer. A system message
            replaces `prompts.system`. Blanks at the end of the user's text go, as in the protocol.
    Raises:
        ConfigError: the tokenizer has no template. InputError: more turns than one.
    """
    if not template_text(tokenizer):
        raise ConfigError("the target's tokenizer has no chat template: leave out --apply_chat_template.")
    roles = [message["role"] for message in messages]
    system = messages[0]["content"] if roles[:1] == ["system"] else None
    turns = list(messages[1:] if system is not None else messages)
    if [turn["role"] for turn in turns] not in (["user"], ["user", "assistant"]):
        raise InputError(f"expected one user turn, got {', '.join(roles)}. Put examples into it: --fewshot_as_multiturn false.")
    frame = chat_frame(tokenizer, options.context_separator, system or options.system, datetime.date.fromisoformat(options.date))
    return frame.before + turns[0]["content"].rstrip() + frame.after + (turns[1]["content"] if len(turns) > 1 else "")
