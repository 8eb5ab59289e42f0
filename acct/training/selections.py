"""Frozen selections: what the Compiler's examples keep by the finished Cartographer and Allocator, an artifact of its own (spec 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acct.errors import ArtifactError
from acct.pipeline import Interface, choose
from acct.progress import Progress
from acct.selection import concatenate, rows, split, to_device, validate
from acct.training.session import Examples, Session
from acct.types import Selection

SELECTION_FIELDS = ("context_lengths", "tails", "counts", "positions", "ranks", "is_tail")


@dataclass(frozen=True)
class FrozenSelections:
    """One Selection for every example of a list, in its order, on the CPU.

    Attributes:
        all: selection of all examples as one batch.
    """

    all: Selection

    def of(self, indices: Sequence[int], device: torch.device | str) -> Selection:
        """The selection of a batch of examples."""
        return to_device(rows(self.all, list(indices)), device)

    def tensors(self) -> dict[str, Tensor]:
        """As stored: int32 and bool."""
        found = {name: getattr(self.all, name) for name in SELECTION_FIELDS}
        return {name: value if value.dtype == torch.bool else value.to(torch.int32) for name, value in found.items()}

    @staticmethod
    def load(tensors: dict[str, Tensor], layers: int, heads: int) -> FrozenSelections:
        """From stored tensors, validated.

        Raises:
            ArtifactError: a tensor is missing. SelectionError: an invariant is broken.
        """
        missing = next((name for name in SELECTION_FIELDS if name not in tensors), None)
        if missing:
            raise ArtifactError(f"the frozen selections lack the tensor {missing!r}.")
        wide = {name: tensors[name] if tensors[name].dtype == torch.bool else tensors[name].to(torch.int64) for name in SELECTION_FIELDS}
        selection = Selection(layers, heads, **wide)
        validate(selection)
        return FrozenSelections(selection)


def batches_of(count: int, batch: int, lengths: Sequence[int]) -> list[list[int]]:
    """All indices in batches of similar length, for passes whose order does not matter."""
    order = sorted(range(count), key=lambda index: lengths[index])
    return [order[start : start + batch] for start in range(0, count, batch)]


@torch.no_grad()
def freeze_selections(session: Session, interface: Interface, examples: Examples, batch: int, label: str) -> FrozenSelections:
    """Select for every example with the trained modules.

    Args:
        interface: Cartographer and Allocator in eval mode; its Compiler is not used.
        batch: examples read at once. label: of the progress display.
    """
    found: dict[int, Selection] = {}
    with Progress(label, len(examples), every=session.config.runtime.progress_seconds, enabled=session.parallel.main) as display:
        for indices in batches_of(len(examples), batch, examples.lengths()):
            states = session.read_source(examples.batch(indices)).to(session.device)
            chosen = to_device(choose(interface, session.pair.geometry, states), "cpu")
            found.update(zip(indices, split(chosen)))
            display.update(len(indices))
    return FrozenSelections(concatenate([found[index] for index in range(len(examples))]))
