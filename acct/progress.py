"""The one progress display: rate and estimated time left, redrawn in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import TextIO, TypeVar

T = TypeVar("T")


def clock_text(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, second = divmod(int(max(seconds, 0) + 0.5), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


class Progress:
    """Counts units of work towards a total. Use as a context manager.

    Args:
        label: what is being done. total: units in all. done: units finished before (a resumed run); they do not count into the rate.
        unit: name of one unit. every: seconds between lines where the stream is not a terminal.
        stream: where to write, standard error by default. enabled: False writes nothing.
    """

    def __init__(
        self, label: str, total: int, *, done: int = 0, unit: str = "examples", every: float = 5.0,
        stream: TextIO | None = None, enabled: bool = True,
    ):  # fmt: skip
        self.label, self.total, self.done, self.unit, self.every = label, total, done, unit, every
        self.stream = stream or sys.stderr
        self.enabled = enabled
        self.terminal = bool(getattr(self.stream, "isatty", lambda: False)())
        self._first, self._start, self._last, self._width = done, time.perf_counter(), 0.0, 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    @property
    def rate(self) -> float:
        """Units per second in this process."""
        return (self.done - self._first) / max(self.seconds, 1e-9)

    def line(self, note: str = "") -> str:
        """The text of the display."""
        left = (self.total - self.done) / self.rate if self.rate > 0 else 0.0
        text = f"{self.label}: {self.done}/{self.total} {self.unit}, {self.rate:.1f}/s, {clock_text(self.seconds)} gone"
        text += f", {clock_text(left)} left" if self.done < self.total else ""
        return f"{text}, {note}" if note else text

    def update(self, units: int = 1, note: str = "") -> None:
        """Add finished units; note is appended to the line."""
        self.done += units
        now = time.perf_counter()
        if not self.enabled or now - self._last < (0.1 if self.terminal else self.every):
            return
        self._last = now
        self._write(self.line(note), end="" if self.terminal else "\n")

    def _write(self, text: str, end: str) -> None:
        start = "\r" if self.terminal else ""
        padding = " " * max(self._width - len(text), 0) if self.terminal else ""
        self._width = len(text)
        self.stream.write(f"{start}{text}{padding}{end}")
        self.stream.flush()

    def __enter__(self) -> Progress:
        self._start = self._last = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.enabled and self.done > self._first:
            self._write(self.line(), end="\n")


def progress(items: Iterable[T], label: str, total: int | None = None, **options: object) -> Iterator[T]:
    """Iterate with a display; total defaults to the length of the items."""
    if total is None:
        total = len(items) if isinstance(items, Sized) else 0
    with Progress(label, total, **options) as display:  # type: ignore[arg-type]
        for item in items:
            yield item
            display.update()
