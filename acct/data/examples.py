"""One evaluation or training example, in text, before any tokenizer has seen it (spec 8)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

from acct.errors import DataError

Kind = Literal["generate", "choice", "perplexity"]
KINDS: tuple[Kind, ...] = ("generate", "choice", "perplexity")


@dataclass(frozen=True)
class Example:
    """What is read (context), what is asked (query) and what is scored.

    Attributes:
        id: "task/..." and unique inside one split of one task.
        task: name in the task registry.
        kind: "generate" (the answer is generated, F1), "choice" (candidates are scored), "perplexity" (one continuation is scored).
        context: the text that the source reads and the target does not.
        query: the text that the target reads, without any cue; "" where the end of the prompt serves as the query.
        answers: accepted answers, the canonical one first; the gold candidate for "choice"; empty for "perplexity".
        candidates: texts whose likelihood is compared, without a leading space; for "perplexity" the one continuation, verbatim.
        gold: index of the right candidate, None where there are no alternatives.
        scored_suffix: text after the candidate that alone is scored (WinoGrande), else None.
        contextual: whether the task brings a passage of its own; it decides the prompt protocol.
        further: other questions on the same context, each with its answer; training may use them, nothing scores them.
    """

    id: str
    task: str
    kind: Kind
    context: str
    query: str
    answers: tuple[str, ...]
    candidates: tuple[str, ...]
    gold: int | None
    scored_suffix: str | None
    contextual: bool
    further: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DataError(f"{self.id}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}.")
        if self.gold is not None and not 0 <= self.gold < len(self.candidates):
            raise DataError(f"{self.id}: gold {self.gold} is not an index into {len(self.candidates)} candidates.")
        if self.kind == "choice" and self.gold is None:
            raise DataError(f"{self.id}: a choice needs the index of the right candidate.")
        if self.kind == "perplexity" and len(self.candidates) != 1:
            raise DataError(f"{self.id}: perplexity needs exactly one continuation, got {len(self.candidates)}.")
        if self.kind == "generate" and not self.answers:
            raise DataError(f"{self.id}: a generated answer needs at least one accepted answer.")

    def content_hash(self) -> str:
        """SHA-256 over every field but `further`, as 64 hex digits: equal exactly when nothing that is read, asked or scored differs."""
        fields = {name: value for name, value in asdict(self).items() if name != "further"}
        text = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
