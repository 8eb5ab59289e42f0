"""Data parallelism under torchrun through Accelerate: every process takes its share of a batch, gradients are summed.

One process without torchrun needs none of it and imports nothing. A batch is cut by the processes, weights of the shares follow
their sizes, so two processes at the same global batch compute the same loss as one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class Parallel:
    """The processes of this run.

    Args:
        cpu: use gloo on the CPU; False lets Accelerate choose by the visible devices.
    Attributes:
        rank, world: this process and their number.
    """

    def __init__(self, cpu: bool = True):
        self.rank, self.world, self._state = 0, 1, None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from accelerate import PartialState

            self._state = PartialState(cpu=cpu)
            self.rank, self.world = self._state.process_index, self._state.num_processes

    @property
    def main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """This process's part of a global batch; may be empty."""
        return list(items[self.rank :: self.world])

    def barrier(self) -> None:
        """Wait for the others."""
        if self._state is not None:
            self._state.wait_for_everyone()

    def sum(self, values: Tensor) -> Tensor:
        """Sum of a tensor over the processes."""
        if self._state is None:
            return values
        from accelerate.utils import reduce

        return reduce(values, reduction="sum")

    def gather(self, values: Tensor) -> list[Tensor]:
        """A tensor of equal shape from every process, in their order."""
        if self._state is None:
            return [values]
        from accelerate.utils import gather

        return list(gather(values[None]).unbind(0))

    def sum_gradients(self, module: nn.Module, extra: Tensor) -> Tensor:
        """Sum the gradients of a module in place, in one message for each type, and return the summed extra numbers.

        Args:
            module: its parameters hold this process's share of the gradient; None counts as zero.
            extra: float [n], further numbers to sum (loss, flags).
        """
        if self._state is None:
            return extra
        wanted = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for parameter in wanted:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.reshape(-1).float() for parameter in wanted] + [extra.to(wanted[0].device).float()])
        flat = self.sum(flat)
        start = 0
        for parameter in wanted:
            size = parameter.numel()
            parameter.grad.copy_(flat[start : start + size].view_as(parameter))
            start += size
        return flat[start:].to(extra)
