"""Triton kernels of the conversion path for CUDA GPUs, and the one switch that chooses them (spec 2, 4).

    scoring.py       s_{p,i} of all units without a tensor [unit, context, d_M]; with gradients too
    compilation.py   gather, Bridge, readout, conditions, bias, rotation and write of every slot in one pass; without gradients

The plain path is the oracle of both and is what runs on the CPU. Importing this package imports no Triton. `runtime.kernels` is one of

    auto     the kernels where the modules are on CUDA in a type of TYPES and Triton can be imported, and not inside torch.compile, which
             writes kernels of its own; the plain path elsewhere
    plain    never the kernels
    triton   the kernels, or an error that says why not; on the CPU they run through Triton's interpreter, TRITON_INTERPRET=1, for tests
"""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import Tensor

from acct.errors import ConfigError

KERNELS = ("auto", "plain", "triton")
TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of the modules' weights that the kernels take; sums are float32."""


@cache
def available() -> bool:
    """Whether Triton can be imported."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def interpreted() -> bool:
    """Whether Triton was told to run kernels on the CPU; it reads the variable when it is imported."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def check_installed(kernels: str) -> None:
    """Raises ConfigError where the kernels are asked for by name and Triton cannot be imported; called before anything is loaded."""
    if kernels == "triton" and not available():
        raise ConfigError(
            "runtime.kernels=triton needs the package triton, which cannot be imported here. Install it (on Linux: pip install "
            "'acct[kernels]'), or set runtime.kernels to auto or plain."
        )


def choose(kernels: str, weight: Tensor) -> bool:
    """Whether the kernels run.

    Args:
        kernels: of KERNELS. weight: a tensor of the module, in the type and on the device of its arithmetic.
    Raises:
        ConfigError: the kernels are asked for by name and cannot run, for want of Triton, of CUDA, or in this type.
    """
    if kernels not in KERNELS:
        raise ConfigError(f"runtime.kernels must be one of {', '.join(KERNELS)}; got {kernels!r}.")
    if kernels == "plain":
        return False
    if kernels == "auto":
        return weight.is_cuda and weight.dtype in TYPES and not torch.compiler.is_compiling() and available()
    check_installed(kernels)
    if not weight.is_cuda and not interpreted():
        raise ConfigError(
            f"runtime.kernels=triton needs the interface on a CUDA device, it is on {weight.device}. Set runtime.interface_device=cuda, or "
            "runtime.kernels to auto or plain; TRITON_INTERPRET=1 in the environment runs the kernels on the CPU, for tests."
        )
    if weight.dtype not in TYPES:
        names = ", ".join(str(known).removeprefix("torch.") for known in TYPES)
        raise ConfigError(f"runtime.kernels=triton takes modules in {names}, got {weight.dtype}. Set runtime.kernels to auto or plain.")
    return True
