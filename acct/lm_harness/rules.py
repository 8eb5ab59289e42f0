"""How far a rolling likelihood reads, and where a generated text ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acct.errors import ConfigError


@dataclass(frozen=True)
class Rolling:
    """Windows of a rolling likelihood; every token is scored exactly once.

    Attributes:
        context_tokens: most tokens before a window's scored part. scored_tokens: tokens scored in one window.
    """

    context_tokens: int
    scored_tokens: int

    def __post_init__(self) -> None:
        if self.context_tokens < 2 or self.scored_tokens < 1:
            raise ConfigError(
                f"a rolling window needs at least 2 tokens to read and 1 to score, got {self.context_tokens} and {self.scored_tokens}."
            )


@dataclass(frozen=True)
class GenerationRules:
    """When a generated text ends: after `limit` tokens, or before the first of the texts `until`."""

    limit: int
    until: tuple[str, ...]

    @classmethod
    def of(cls, arguments: Mapping[str, Any], limit: int) -> GenerationRules:
        """From lm-eval's generation arguments; `limit` where they name none.

        Raises:
            ConfigError: sampling or beams are asked for; mounted contexts are decoded greedily.
        """
        if arguments.get("do_sample") or float(arguments.get("temperature") or 0) > 0 or int(arguments.get("num_beams") or 1) > 1:
            raise ConfigError(f"generation is greedy, got {dict(arguments)}. Set do_sample=False, temperature=0 and num_beams=1.")
        until = arguments.get("until") or []
        named = [arguments[name] for name in ("max_gen_toks", "max_new_tokens", "max_tokens") if arguments.get(name) is not None]
        return cls(int(named[0]) if named else limit, tuple(filter(None, [until] if isinstance(until, str) else until)))

    def cut(self, text: str) -> str:
        ends = [text.find(stop) for stop in self.until if stop in text]
        return text[: min(ends)] if ends else text
