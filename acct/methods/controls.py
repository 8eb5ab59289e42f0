"""States that cannot carry the document: a method that they come near proves nothing (spec 8)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from acct.compiler.compiler import rotate_kv
from acct.methods.base import SparseMethod
from acct.methods.prepared import Prepared
from acct.models.pair import Pair
from acct.pipeline import seeded
from acct.selection import row_counts, to_device
from acct.types import SparseKV


class Zeros(SparseMethod):
    """Zero keys and values at ACCT's positions."""

    name = "zeros"
    control = True
    compiles: ClassVar[bool] = False

    def states(self, prepared: Prepared) -> SparseKV:
        target = prepared.pair.target
        selection = to_device(prepared.selection, target.device)
        keys = torch.zeros(len(selection.positions), target.geometry.head_dim, dtype=target.dtype, device=target.device)
        return SparseKV(selection, keys, torch.zeros_like(keys), rotated=True)  # two tensors: bytes are counted by storage


class Noise(SparseMethod):
    """Gaussian keys and values at ACCT's positions, with the mean and the variance of ACCT's states.

    Moments are one number each for an example, a unit, and keys or values, over slots and coordinates: a mean for each coordinate
    would hand over the document itself where a unit keeps one slot. Keys are drawn before the rotation. Drawn from the example's
    prompt alone: the same in any batch.
    """

    name = "noise"
    control = True

    def states(self, prepared: Prepared) -> SparseKV:
        kv = prepared.compiled_pre
        counts = row_counts(kv.selection)  # [layer, batch, head]
        keys, values = (_noise_like(part, counts, prepared, name) for part, name in ((kv.keys, "keys"), (kv.values, "values")))
        return rotate_kv(prepared.pair.target, SparseKV(kv.selection, keys, values, rotated=False))


def _noise_like(states: Tensor, counts: Tensor, prepared: Prepared, part: str) -> Tensor:
    """Gaussian [slot, dim] with each row's mean and variance over slots and coordinates; rows are (layer, batch, head)."""
    _, batch, heads = counts.shape
    flat = counts.reshape(-1).to(states.device)
    row = torch.repeat_interleave(torch.arange(len(flat), device=states.device), flat)  # [slot]
    exact, numbers = states.to(torch.float64), (flat * states.shape[1]).clamp(min=1)
    mean = torch.zeros(len(flat), dtype=torch.float64, device=states.device).index_add_(0, row, exact.sum(1)) / numbers
    spread = (exact - mean[row, None]).square().sum(1)
    deviation = (torch.zeros_like(mean).index_add_(0, row, spread) / numbers).sqrt()
    drawn = torch.empty(states.shape, dtype=torch.float64)
    example = (row // heads % batch).cpu()
    for index, encoded in enumerate(prepared.examples):
        slots = (example == index).nonzero().flatten()
        generator = seeded(prepared.seed, f"noise {part}", encoded.prompt_hash)
        drawn[slots] = torch.randn(len(slots), states.shape[1], generator=generator, dtype=torch.float64)
    return (mean[row, None] + deviation[row, None] * drawn.to(states.device)).to(states.dtype)


class WrongDocument(SparseMethod):
    """The transferred states of another document of the same task, at that document's own positions and length.

    Its states come with its own query, and the row's query then starts at the other document's N.
    """

    name = "wrong_document"
    control = True

    def states(self, prepared: Prepared) -> SparseKV:
        return prepared.transferred_strangers


class RawSource(SparseMethod):
    """The source's keys and values as they are at ACCT's positions, rotated by the target's RoPE."""

    name = "raw_source"
    control = True
    compiles: ClassVar[bool] = False
    on_request = True

    def applicable(self, pair: Pair) -> str | None:
        source, target = pair.geometry.source.head_dim, pair.geometry.target.head_dim
        return None if source == target else f"head widths differ ({source} and {target})"

    def states(self, prepared: Prepared) -> SparseKV:
        return prepared.raw_at(prepared.selection)
