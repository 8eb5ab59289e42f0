"""The memory peak of one call beside what was there before it.

CUDA: `max_memory_allocated` after a reset, summed over visible devices, less what was allocated before. CPU: every storage that an
operation of PyTorch returns inside the block is counted from its birth to its death (a TorchDispatchMode); temporaries inside one kernel
and memory of other libraries are not seen.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Storages(TorchDispatchMode):
    """Bytes of CPU storages born in the block: now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = tree_leaves((args, kwargs or {}))
        before = {leaf.untyped_storage()._cdata for leaf in arguments if isinstance(leaf, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for key in [key for key, (reference, _) in self.live.items() if reference.expired()]:
            del self.live[key]
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                storage = leaf.untyped_storage()
                if storage._cdata not in before and storage._cdata not in self.live:
                    self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, sum(size for _, size in self.live.values()))
        return result


class PeakMemory:
    """`with PeakMemory() as peak: ...; peak.bytes`.

    Attributes:
        bytes: the peak, once the block has ended.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
        self._before = 0
        self._storages: _Storages | None = None

    def __enter__(self) -> PeakMemory:
        if len(self._devices):
            for index in self._devices:
                torch.cuda.synchronize(index)
                torch.cuda.reset_peak_memory_stats(index)
            self._before = sum(torch.cuda.memory_allocated(index) for index in self._devices)
        else:
            self._storages = _Storages()
            self._storages.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._storages is not None:
            self._storages.__exit__(kind, error, trace)
            self.bytes = self._storages.most
        else:
            self.bytes = sum(torch.cuda.max_memory_allocated(index) for index in self._devices) - self._before


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on either kind of device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text or "not enough memory" in text)
