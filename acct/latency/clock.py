"""Wall-clock times of stages, all visible devices synchronised, every repetition kept (spec 9, paper K).

A stage is called once for each pass over a fresh prompt. Its first `warmup` calls are not counted, the next `repetitions` are, later ones
run without being noted. The first warm-up call is the one whose memory peak is measured, so that no counted call is slowed by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from acct.latency.memory import PeakMemory

T = TypeVar("T")


@dataclass
class Timing:
    """One stage at one length.

    Attributes:
        warmup_ms, raw_ms: every call, in order. peak_bytes: most memory that one call held beside what was there before it, its result
            included; None where no warm-up call measured it.
    """

    warmup_ms: list[float] = field(default_factory=list)
    raw_ms: list[float] = field(default_factory=list)
    peak_bytes: int | None = None

    @property
    def median_ms(self) -> float:
        return float(np.median(self.raw_ms))

    def percentile(self, share: float) -> float:
        """A percentile of the repetitions in milliseconds; share in percent."""
        return float(np.percentile(self.raw_ms, share))


def synchronise() -> None:
    """Wait for every CUDA device that this process sees."""
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        torch.cuda.synchronize(index)


def timed(action: Callable[..., T], *arguments: Any) -> tuple[float, T]:
    """Milliseconds of one call, and what it returned."""
    synchronise()
    start = time.perf_counter()
    result = action(*arguments)
    synchronise()
    return (time.perf_counter() - start) * 1e3, result


class Clock:
    """Times the stages of one length.

    Args:
        warmup, repetitions: calls by stage.
    """

    def __init__(self, warmup: Mapping[str, int], repetitions: Mapping[str, int]) -> None:
        self.warmup, self.repetitions = dict(warmup), dict(repetitions)
        self.timings: dict[str, Timing] = {}

    def passes(self, *stages: str) -> int:
        """Passes until every stage named has all its calls."""
        return max(self.warmup[stage] + self.repetitions[stage] for stage in stages)

    def finished(self, stage: str) -> bool:
        """Whether a stage has all its repetitions."""
        return stage in self.timings and len(self.timings[stage].raw_ms) >= self.repetitions[stage]

    def run(self, stage: str, action: Callable[..., T], *arguments: Any) -> T:
        """Call a stage once, note its time where it still counts, and return its result."""
        timing = self.timings.setdefault(stage, Timing())
        if len(timing.warmup_ms) < self.warmup[stage]:
            if timing.warmup_ms:
                milliseconds, result = timed(action, *arguments)
            else:
                with PeakMemory() as peak:
                    milliseconds, result = timed(action, *arguments)
                timing.peak_bytes = peak.bytes
            timing.warmup_ms.append(milliseconds)
            return result
        if self.finished(stage):
            return action(*arguments)
        milliseconds, result = timed(action, *arguments)
        timing.raw_ms.append(milliseconds)
        return result
