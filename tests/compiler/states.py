"""Random states and selections of a pair whose two sides differ on every axis, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acct.compiler.residual import Residual, ResidualShape
from acct.geometry import ModelGeometry, PairGeometry
from acct.selection import select
from acct.types import NativeStates, Selection, SourceStates

PAIR = PairGeometry(
    source=ModelGeometry("llama", layers=2, kv_heads=2, query_heads=4, head_dim=6, hidden=20, vocabulary=11),
    target=ModelGeometry("llama", layers=3, kv_heads=3, query_heads=6, head_dim=10, hidden=28, vocabulary=11),
)


@dataclass(frozen=True)
class Batch:
    states: SourceStates
    native: NativeStates
    selection: Selection


def draw(
    seed: int = 0,
    contexts: Sequence[int] = (11, 2, 17),
    queries: Sequence[int] = (4, 7, 3),
    tail: int = 3,
    empty: Sequence[int] = (),
    pair: PairGeometry = PAIR,
    dtype: torch.dtype = torch.float32,
    extra: int = 0,
) -> Batch:
    """A batch of random states.

    Args:
        contexts, queries: N and Q of each example. tail: t = min(tail, N). empty: units that keep no ranked slot.
        extra: padded positions beyond the longest context and query.
    """
    generator = torch.Generator().manual_seed(seed)
    batch, width, query = len(contexts), max(contexts) + extra, max(queries) + extra
    lengths, query_lengths = torch.tensor(contexts), torch.tensor(queries)
    source, target = pair.source, pair.target

    def normal(*shape: int, lengths: Tensor) -> Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        inside = torch.arange(shape[-2]) < lengths[:, None]
        return (drawn * inside.view(batch, *(1,) * (len(shape) - 3), shape[-2], 1)).to(dtype)

    states = SourceStates(
        context_ids=torch.zeros(batch, width, dtype=torch.int64),
        context_lengths=lengths,
        context_hidden=normal(batch, width, source.hidden, lengths=lengths),
        taps=normal(batch, 3, width, source.hidden, lengths=lengths),
        keys_pre=normal(batch, source.layers, source.kv_heads, width, source.head_dim, lengths=lengths),
        values=normal(batch, source.layers, source.kv_heads, width, source.head_dim, lengths=lengths),
        identity={"model": "tiny"},
    )
    units, dim = pair.units, target.head_dim
    native = NativeStates(
        context_lengths=lengths,
        query_lengths=query_lengths,
        context_keys_pre=normal(batch, units, width, dim, lengths=lengths),
        context_values=normal(batch, units, width, dim, lengths=lengths),
        query_keys_pre=normal(batch, units, query, dim, lengths=query_lengths),
        query_values=normal(batch, units, query, dim, lengths=query_lengths),
        queries_pre=normal(batch, target.layers, target.query_heads, query, dim, lengths=query_lengths),
    )
    tails = lengths.clamp(max=tail)
    order = torch.zeros(batch, units, width, dtype=torch.int64)
    counts = torch.zeros(batch, units, dtype=torch.int64)
    for b in range(batch):
        prefix = int(lengths[b] - tails[b])
        for p in range(units):
            order[b, p, :prefix] = torch.randperm(prefix, generator=generator)
            counts[b, p] = 0 if p in empty else torch.randint(0, prefix + 1, (), generator=generator)
    return Batch(states, native, select(order, counts, lengths, tails, target.layers, target.kv_heads))


def residual(seed: int = 0, pair: PairGeometry = PAIR, randomise: bool = False, **options: object) -> Residual:
    """A small residual; `randomise` also draws what starts at zero, and the norms' weights."""
    shape = {"width": 12, "feed_forward_width": 20, "depth": 2, "latents": 5, "head_width": 4, **options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Residual(ResidualShape(pair.source.hidden, pair.units, pair.target.head_dim, **shape))  # type: ignore[arg-type]
        if randomise:
            for name, parameter in module.named_parameters():
                if "norm" in name:
                    torch.nn.init.normal_(parameter, 1.0, 0.3)
                elif "readout" in name or "condition" in name or "bias" in name:
                    torch.nn.init.normal_(parameter, 0.0, 0.4)
    return module
