"""What a compressor sees of one example: the target's queries, keys and values over a sequence, and attention over them in blocks.

The sequence is the context alone, or [context; query] for a query-aware compressor. By causality one forward over [context; query]
serves both: the first N places do not depend on what follows ("dynamic" RoPE apart, where rotations here use the sequence's length).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from acct.models.adapter import ForwardStates, ModelAdapter


@dataclass(frozen=True)
class Observed:
    """One example.

    Attributes:
        adapter: of the target. context_length: N. length: L, N or N + Q.
        queries_pre: before RoPE [unit, group, L, dim], the G query heads of each KV head.
        keys: rotated [unit, L, dim]. values: the same shape. Float32 or higher, whatever the model's dtype.
    """

    adapter: ModelAdapter
    context_length: int
    queries_pre: Tensor
    keys: Tensor
    values: Tensor

    @property
    def length(self) -> int:
        return self.keys.shape[1]

    def queries(self, start: int) -> Tensor:
        """Rotated queries of the places from `start` on: [unit, group, L - start, dim]."""
        places = torch.arange(start, self.length, device=self.keys.device)
        return self.adapter.rotate(self.queries_pre[:, :, start:], places, self.length)


def observe(adapter: ModelAdapter, states: ForwardStates, row: int, context_length: int, length: int) -> Observed:
    """Row `row` of a forward over [context; query] that kept queries, keys and values, cut to its first `length` places."""
    assert states.queries_pre is not None and states.keys_pre is not None and states.values is not None
    precise = torch.promote_types(states.keys_pre.dtype, torch.float32)
    keys, values = (t[row, :, :, :length].flatten(0, 1).to(precise) for t in (states.keys_pre, states.values))
    queries = states.queries_pre[row, :, :, :length].to(precise)  # [layer, query_head, L, dim]
    grouped = queries.unflatten(1, (states.keys_pre.shape[2], -1)).flatten(0, 1)
    places = torch.arange(length, device=keys.device)
    return Observed(adapter, context_length, grouped, adapter.rotate(keys, places, length), values)


def attention_rows(observed: Observed, start: int, block: int) -> Iterator[tuple[slice, int, Tensor]]:
    """Causal attention weights of the places from `start` on, block by block; never L x L at once.

    Args:
        block: most weights held at once, but never less than one row of one unit's query heads.
    Yields:
        the units, the first place and the weights [unit, group, row, L] of each block, zero after a row's own place. Blocks of the same
        units follow each other.
    """
    units, group = observed.queries_pre.shape[:2]
    length = observed.length
    step = max(min(block // (group * length * max(length - start, 1)), units), 1)  # units whose rows fit at once, else one
    rows = max(block // (step * group * length), 1)
    queries = observed.queries(start) * observed.adapter.scaling
    place = torch.arange(length, device=queries.device)
    for first in range(0, units, step):
        chosen = slice(first, first + step)
        keys = observed.keys[chosen, None].transpose(-1, -2)  # [unit, 1, dim, L]
        for row in range(start, length, rows):
            part = queries[chosen, :, row - start : row - start + rows]
            later = place > torch.arange(row, row + part.shape[2], device=place.device)[:, None]
            yield chosen, row, (part @ keys).masked_fill_(later, -torch.inf).softmax(dim=-1)
