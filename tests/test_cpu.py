"""What a process on the CPU is set to (acct.cpu)."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from acct.config.runtime import RuntimeConfig
from acct.cpu import prepare_cpu

GLIBC = platform.libc_ver()[0] == "glibc"
FAULTS = """
import resource, sys, torch
from acct.config.runtime import RuntimeConfig
from acct.cpu import prepare_cpu
prepare_cpu(RuntimeConfig(keep_memory=sys.argv[1] == "keep"))
def passes(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(64 * 2**20, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
torch.ones(256 * 2**20, dtype=torch.uint8)
print(passes(8))
"""


def faults(choice: str) -> int:
    """Page faults of eight tensors of 64 MiB, each freed before the next, after one of 256 MiB, in a process of its own."""
    found = subprocess.run([sys.executable, "-c", FAULTS, choice], capture_output=True, text=True, check=True)
    return int(found.stdout)


@pytest.mark.skipif(not GLIBC, reason="the switch is glibc's")
def test_a_process_that_keeps_its_memory_writes_into_pages_it_has():
    pages = 8 * 64 * 2**20 // 4096
    assert faults("give back") > pages / 2 / 512  # at least one fault for each page, be it one of 2 MiB
    assert faults("keep") < pages / 8


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
    prepare_cpu(RuntimeConfig(keep_memory=True))
    assert "runtime.keep_memory" in caplog.text
