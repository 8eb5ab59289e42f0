"""What the machine can do at most, measured in the same run: matrix products and copies. The roofline of every stage stands on them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from acct.latency.clock import timed


@dataclass(frozen=True)
class Ceilings:
    """Best of several tries.

    Attributes:
        flops: floating-point operations a second of a square matrix product, two for each multiply-add. bytes: bytes a second of a copy,
            read and written ones both counted.
    """

    flops: float
    bytes: float

    def bound_ms(self, flops: float, bytes: float) -> float:
        """The roofline: milliseconds that this many operations and bytes need at least."""
        return 1e3 * max(flops / self.flops, bytes / self.bytes)


@torch.no_grad()
def measure_ceilings(device: torch.device | str, dtype: torch.dtype, size: int = 2048, copied: int = 1 << 27, tries: int = 5) -> Ceilings:
    """Measure a device.

    Args:
        size: side of the matrices. copied: bytes of the source of the copy. tries: of each, the best counts.
    """
    left, right = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    source = torch.empty(copied, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source).fill_(0)
    multiply = min(timed(lambda: torch.mm(left, right, out=product))[0] for _ in range(tries + 1))
    copy = min(timed(lambda: target.copy_(source))[0] for _ in range(tries + 1))
    return Ceilings(2 * size**3 / (multiply / 1e3), 2 * copied / (copy / 1e3))
