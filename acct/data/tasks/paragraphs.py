"""Questions on one paragraph among others of its row: what the tasks share that make training sets of plain prose. [ours]"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from acct.data.tasks.base import QuestionAnswering
from acct.errors import DataError


@dataclass(frozen=True)
class AmongParagraphs(QuestionAnswering):
    """The context is a paragraph among others of its row, in random order, as many as a drawn number of words holds.

    Attributes:
        seed: of everything drawn. least_words, most_words: of a context, drawn between them; its own paragraph is never cut.
    """

    seed: int = field(default=0, metadata={"paper": "silent: not a set of the paper"})
    least_words: int = field(default=60, metadata={"paper": "silent: not a set of the paper"})
    most_words: int = field(default=350, metadata={"paper": "silent: not a set of the paper"})

    def __post_init__(self) -> None:
        if not 1 <= self.least_words <= self.most_words:
            raise DataError(f"a context needs 1 <= least_words <= most_words, got {self.least_words} and {self.most_words}.")

    def kept(self, paragraphs: Sequence[str], own: int, name: str) -> list[int]:
        """Numbers of a context's paragraphs, in random order: one's own, and others while all of them fit.

        Args:
            name: of what is drawn; equal names and seeds draw the same.
        """
        draw = random.Random(f"{self.seed} {name}")
        room = draw.randint(self.least_words, self.most_words) - len(paragraphs[own].split())
        kept, others = [own], [number for number in range(len(paragraphs)) if number != own]
        draw.shuffle(others)
        for other in others:
            length = len(paragraphs[other].split())
            if length <= room:
                kept.append(other)
                room -= length
        draw.shuffle(kept)
        return kept
