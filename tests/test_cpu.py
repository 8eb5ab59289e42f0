"""What a process on the CPU is set to (acct.cpu)."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from acct.config.runtime import RuntimeConfig
from acct.cpu import kept_memory, prepare_cpu

GLIBC = platform.libc_ver()[0] == "glibc"
FAULTS = """
import resource, torch
from acct.cpu import kept_memory
def passes():
    for _ in range(8):
        torch.ones(64 * 2**20, dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(64 * 2**20, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
print(passes())
with kept_memory():
    print(min(passes() for _ in range(4)), resident())  # holes of the heap close with use
print(resident())
"""


@pytest.mark.skipif(not GLIBC, reason="the switch is glibc's")
def test_inside_the_block_tensors_are_written_into_pages_that_are_there_and_after_it_memory_is_given_back():
    found = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout.split()
    before, kept, large, small = map(int, found)
    assert kept < before / 4
    assert large - small > 32 * 2**20


def test_threads_are_set_and_null_leaves_them():
    before = torch.get_num_threads()
    try:
        prepare_cpu(RuntimeConfig(threads=before + 1))
        assert torch.get_num_threads() == before + 1
        prepare_cpu(RuntimeConfig())
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_without_glibc_the_wish_is_answered_by_a_warning(monkeypatch, caplog):
    monkeypatch.setattr("acct.cpu.ctypes.CDLL", lambda _name: object())
    with kept_memory(False):
        assert not caplog.text
    with kept_memory():
        assert "runtime.keep_memory" in caplog.text


@pytest.mark.skipif(not GLIBC, reason="the switch is glibc's")
def test_memory_is_given_back_after_an_error(monkeypatch):
    calls = []
    monkeypatch.setattr("acct.cpu._set", lambda _mallopt, options: calls.append(options))
    with pytest.raises(KeyError), kept_memory():
        raise KeyError
    assert len(calls) == 2 and calls[0] != calls[1]
