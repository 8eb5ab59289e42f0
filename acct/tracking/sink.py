"""What a destination of metrics takes beside the local file, and how a run is named there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Value = str | float | int | None


@dataclass(frozen=True)
class RunLabel:
    """How a run is found again among others.

    Attributes:
        name: of the run folder. group: its direction. job: what is done: a stage, "train" for all of them, "evaluate" or "diagnose".
        tags: words to filter by.
    """

    name: str
    group: str = ""
    job: str = "train"
    tags: tuple[str, ...] = ()


class Sink(ABC):
    """A destination. Any exception that a method raises makes the Tracker drop the sink; it never reaches what is being run."""

    name = "sink"

    @abstractmethod
    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Finite numbers of one step of a stage, written as "<stage>/<term>"."""

    @abstractmethod
    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        """A table "<stage>/<name>"; None where a number is undefined."""

    @abstractmethod
    def image(self, key: str, path: Path) -> None:
        """A PNG "<stage>/<name>"; the file may be gone afterwards."""

    @abstractmethod
    def artifact(self, name: str, kind: str, files: Sequence[Path], metadata: Mapping[str, Any]) -> None:
        """What a stage has left: files that stay where they are, and what identifies them."""

    @abstractmethod
    def close(self, failed: bool = False) -> None:
        """The end of the run; `failed` where it ended in an exception."""
