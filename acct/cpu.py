"""What a process on the CPU is set to: threads, and where freed memory goes while frozen models read.

glibc takes every tensor above 32 MB from the system and gives it back when it is freed, so that the next one is written into pages that the
system clears first. With activations of gigabytes that is a quarter of a forward's time (`experiments/LOG.md`). Kept memory is for such
passes alone. In long training with thousands of tensors of all sizes glibc spends its time looking for a place in what it keeps.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from acct.config.runtime import RuntimeConfig

logger = logging.getLogger(__name__)
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4  # of glibc's mallopt(3)
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _TOP_PAD: 256 * 2**20}
_GIVE_BACK = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 64 * 2**20, _TOP_PAD: 128 * 2**10, _MMAP_THRESHOLD: 32 * 2**20}
"""glibc's defaults, thresholds as its own rule leaves them once large tensors were freed: after a call of mallopt it adapts no more."""


def prepare_cpu(runtime: RuntimeConfig) -> None:
    """Set the process's threads to what the configuration asks for."""
    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)


@contextmanager
def kept_memory(wanted: bool = True) -> Iterator[None]:
    """Inside the block the process keeps what it frees, for its next tensors; at the end it gives it back. Blocks are not nested.

    Args:
        wanted: False changes nothing. Without glibc nothing changes either, and a warning says so.
    """
    library = _glibc() if wanted else None
    if wanted and library is None:
        logger.warning("runtime.keep_memory: this system's allocator is not glibc's; freed memory goes where it goes.")
    if library is None:
        yield
        return
    _set(library.mallopt, _KEEP)
    try:
        yield
    finally:
        _set(library.mallopt, _GIVE_BACK)
        library.malloc_trim(0)


def _set(mallopt: Callable[[int, int], int], options: dict[int, int]) -> None:
    for name, value in options.items():
        mallopt(name, value)


def _glibc() -> ctypes.CDLL | None:
    """The C library of this process where it is glibc."""
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version, library.mallopt, library.malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return library
