"""What is counted, what is kept, and the memory peak of a call."""

from __future__ import annotations

import pytest
import torch

from acct.latency.ceilings import Ceilings, measure_ceilings
from acct.latency.clock import Clock, Timing, timed
from acct.latency.memory import PeakMemory, is_out_of_memory


def test_warm_up_calls_are_kept_apart_and_later_calls_are_not_noted() -> None:
    clock, calls = Clock({"a": 2, "b": 0}, {"a": 3, "b": 1}), []
    assert clock.passes("a") == 5 and clock.passes("a", "b") == 5 and clock.passes("b") == 1
    for number in range(7):
        assert clock.run("a", lambda value: calls.append(value) or value, number) == number
    clock.run("b", len, ())
    assert calls == list(range(7)), "every pass runs, whether or not it still counts"
    timing = clock.timings["a"]
    assert (len(timing.warmup_ms), len(timing.raw_ms)) == (2, 3) and clock.finished("a") and all(one >= 0 for one in timing.raw_ms)
    assert timing.peak_bytes == 0 and clock.timings["b"].peak_bytes is None, "without a warm-up call no memory is measured"


def test_median_and_percentiles_of_the_repetitions() -> None:
    timing = Timing(warmup_ms=[1000.0], raw_ms=[5.0, 1.0, 2.0, 3.0, 4.0])
    assert timing.median_ms == 3.0 and timing.percentile(0) == 1.0 and timing.percentile(95) == pytest.approx(4.8)
    milliseconds, result = timed(max, 3, 4)
    assert result == 4 and milliseconds >= 0


def test_the_peak_counts_storages_from_birth_to_death_once_each() -> None:
    before = torch.zeros(1000)
    with PeakMemory() as peak:
        kept = before + 1  # 4,000 bytes
        view = kept[10:].view(-1, 10).transpose(0, 1)  # nothing
        kept.add_(1)  # nothing
        for _ in range(3):
            temporary = torch.empty(500)  # 2,000 bytes, one at a time
            del temporary
    assert peak.bytes == 6000 and view.shape == (10, 99)
    with PeakMemory() as peak:
        pass
    assert peak.bytes == 0


def test_running_out_of_memory_is_told_from_other_errors() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory")) and is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12 bytes."))
    assert not is_out_of_memory(RuntimeError("shapes do not fit")) and not is_out_of_memory(ValueError("out of memory"))


def test_the_roofline_is_the_slower_of_the_two_ceilings() -> None:
    ceilings = Ceilings(flops=1e9, bytes=1e6)
    assert ceilings.bound_ms(2e6, 1e3) == 2.0 and ceilings.bound_ms(1e6, 5e3) == 5.0
    measured = measure_ceilings("cpu", torch.float32, size=64, copied=1 << 16, tries=2)
    assert measured.flops > 0 and measured.bytes > 0
