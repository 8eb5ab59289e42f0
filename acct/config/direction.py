"""Which frozen model is read and which one answers (spec 7)."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from acct.config.fields import check_choice


@dataclass
class DirectionConfig:
    """A directed pair S -> T.

    Attributes:
        name: names the run folder and the rows of the tables.
        source, target: a hub id, a local folder, or an embedded model as "micro:<folder>" or "tiny:<folder>".
        prompts: "auto" takes the tokenizer's chat template where it has one and the Base protocol elsewhere; "chat" and "base" force one.
    """

    name: str = MISSING
    source: str = MISSING
    target: str = MISSING
    prompts: str = "auto"

    def __post_init__(self) -> None:
        check_choice("direction.prompts", self.prompts, ("auto", "chat", "base"))
