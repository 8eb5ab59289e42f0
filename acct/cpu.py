"""What a process on the CPU is set to before models are loaded: threads, and where freed memory goes.

glibc takes every tensor above 32 MB from the system and gives it back when it is freed, so that the next one is written into pages that the
system clears first. With activations of gigabytes that is a third of a forward's time and more (`experiments/LOG.md`).
"""

from __future__ import annotations

import ctypes
import logging

import torch

from acct.config.runtime import RuntimeConfig

logger = logging.getLogger(__name__)
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of glibc's mallopt(3)
_GROWTH_BYTES = 256 * 2**20


def prepare_cpu(runtime: RuntimeConfig) -> None:
    """Set the process to what the configuration asks for."""
    if runtime.threads is not None:
        torch.set_num_threads(runtime.threads)
    if runtime.keep_memory and not keep_memory():
        logger.warning("runtime.keep_memory: this system's allocator is not glibc's; freed memory goes where it goes.")


def keep_memory() -> bool:
    """Let the process keep what it frees, for its next tensors; holds until it ends. False where the C library is not glibc.

    The process stays as large as it once was, and a little larger by fragmentation.
    """
    try:
        library = ctypes.CDLL(None)
        _, set_option = library.gnu_get_libc_version, library.mallopt  # the first is glibc's alone
    except (OSError, AttributeError, TypeError):
        return False
    return all([set_option(_MMAP_MAX, 0), set_option(_TRIM_THRESHOLD, -1), set_option(_TOP_PAD, _GROWTH_BYTES)])
