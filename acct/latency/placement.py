"""Which GPUs each direction's worker gets (paper K): source and interface on the first, target on the last of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from acct.config.latency import LatencyConfig
from acct.errors import ConfigError
from acct.reproduce import cores


@dataclass(frozen=True)
class Worker:
    """One process.

    Attributes:
        direction: what it times. devices: physical GPUs, none for the CPU. environment: added to the process's own. overrides: placement as
            it sees it.
    """

    direction: str
    devices: tuple[int, ...]
    environment: Mapping[str, str]
    overrides: tuple[str, ...]


def visible_devices(environment: Mapping[str, str] = os.environ, count: int | None = None) -> list[str]:
    """The GPUs that this process sees, as CUDA_VISIBLE_DEVICES names them."""
    count = torch.cuda.device_count() if count is None else count
    stated = [one.strip() for one in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    return stated[:count] if stated else [str(index) for index in range(count)]


def threads_here(asked: int | None) -> int | None:
    """CPU threads to use: those asked for, and no more than there are cores; None where PyTorch chooses.

    Threads that wait for a core in turns make a matrix product tens of times slower than fewer threads do.
    """
    return None if asked is None else min(asked, cores())


def place(options: LatencyConfig, directions: Sequence[str], device: str, visible: Sequence[str]) -> list[Worker]:
    """A worker for each direction.

    Args:
        device: runtime.target_device; "cpu" needs no GPU. visible: from `visible_devices`; the placement counts in them.
    Raises:
        ConfigError: no CUDA where it is asked for, a direction without a placement, fewer GPUs than it needs, or one GPU given twice.
    """
    count = threads_here(options.threads)
    threads = {} if count is None else dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(count)
    )  # fmt: skip
    if device == "cpu":
        return [Worker(direction, (), threads, ()) for direction in directions]
    if not visible:
        raise ConfigError(
            f"runtime.target_device={device} asks for CUDA and no GPU is visible. Set runtime.source_device, runtime.interface_device and "
            "runtime.target_device to cpu, or run on a machine with GPUs."
        )
    taken: dict[int, str] = {}
    workers = []
    for direction in directions:
        devices = tuple(options.placement.get(direction, ()))
        if not devices:
            raise ConfigError(f"latency.placement names no GPU for {direction}. Set latency.placement.{direction}=[0].")
        if max(devices) >= len(visible):
            raise ConfigError(
                f"latency.placement puts {direction} on GPU {max(devices)}; {len(visible)} are visible ({', '.join(visible)}). Set "
                f"latency.placement.{direction}=[0], or time it alone: acct latency direction={direction}."
            )
        for index in set(devices):
            if index in taken:
                raise ConfigError(
                    f"latency.placement gives GPU {index} to {taken[index]} and to {direction}; their times would disturb each other. "
                    "Give each its own, or name fewer directions in one call."
                )
            taken[index] = direction
        first, last = "cuda:0", f"cuda:{len(devices) - 1}"
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(visible[index] for index in devices)}
        overrides = (f"runtime.source_device={first}", f"runtime.interface_device={first}", f"runtime.target_device={last}")
        workers.append(Worker(direction, devices, threads | seen, overrides))
    return workers
