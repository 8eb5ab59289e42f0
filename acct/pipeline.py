"""ACCT's transfer as one function: source states -> ranking -> counts -> selection -> target keys and values -> rotation (spec 2-4).

Evaluation, the library (`acct.transfer`) and the ablations all come through here, so that there is one meaning of "the method".
Training stages freeze its parts one after the other and read the same selections.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from acct.cartographer import rank_prefix
from acct.compiler.compiler import Compiler
from acct.errors import ConfigError
from acct.geometry import PairGeometry
from acct.selection import select, to_device, uniform_counts
from acct.types import Selection, SourceStates, SparseKV

if TYPE_CHECKING:
    from acct.allocator.allocator import Allocator
    from acct.allocator.budget import BudgetRule
    from acct.cartographer import Cartographer
    from acct.methods.ridge_map import RidgeMap
    from acct.models.adapter import ModelAdapter
    from acct.models.pair import Pair

Ranking = Literal["learned", "random"]


@dataclass(frozen=True)
class Interface:
    """The trained modules of one direction under one budget.

    Attributes:
        compiler: Bridge and residual. rule: retention and tail.
        cartographer: the learned ranking; None where `ranking` is random, or where retention is 1 and nothing is ranked.
        allocator: the learned counts; None for equal capacity in every unit (Table 3's Uniform, and retention 1).
        ranking: "random" is Table 3's retrained Random. seed: of random orders.
        identity: names and hashes of what this was built from; joined to every transferred state.
        utility_rows: query positions at which the source's own utilities are measured (`read_source`); the Cartographer's to ask for.
        linear_maps: fitted maps of whole contexts by name, for the rows `ridge_<m>`; no part of the method.
    """

    compiler: Compiler
    rule: BudgetRule
    cartographer: Cartographer | None = None
    allocator: Allocator | None = None
    ranking: Ranking = "learned"
    seed: int = 0
    identity: Mapping[str, str] = field(default_factory=dict)
    linear_maps: Mapping[str, RidgeMap] = field(default_factory=dict)
    utility_rows: int = 0

    def __post_init__(self) -> None:
        if self.ranking not in ("learned", "random"):
            raise ConfigError(f"ranking must be 'learned' or 'random', got {self.ranking!r}.")
        if self.ranking == "learned" and self.cartographer is None and float(self.rule.retention) < 1:
            raise ConfigError(f"retention {self.rule.retention} needs a ranking: give a Cartographer, or ranking='random'.")


def rank(interface: Interface, geometry: PairGeometry, states: SourceStates) -> Tensor:
    """Every unit's ranking of its prefix, best first: int64 [batch, unit, context] (spec 2).

    At retention 1 nothing is ranked and positions come in ascending order.
    """
    lengths = states.context_lengths
    prefix = lengths - interface.rule.tails(lengths)
    if interface.ranking == "random":
        return random_order(states.context_ids, lengths, prefix, geometry.units, interface.seed)
    if interface.cartographer is None:
        return torch.arange(states.context_ids.shape[1], device=lengths.device).expand(states.batch, geometry.units, -1)
    if states.query_hidden is None or states.query_lengths is None:
        raise ConfigError("the ranking depends on the query: read the source states with one, or add one with `read_query`.")
    scores = interface.cartographer(
        states.context_hidden, lengths, states.query_hidden, states.query_lengths, utilities=states.query_utilities
    )  # fmt: skip
    return rank_prefix(scores, prefix)


def count(interface: Interface, geometry: PairGeometry, context_lengths: Tensor) -> Tensor:
    """Ranked slots of every unit, tail not included: int64 [batch, unit] (spec 3)."""
    if interface.allocator is None:
        return uniform_counts(context_lengths, interface.rule, geometry.units)
    return interface.allocator.counts(context_lengths, interface.rule)


def choose(interface: Interface, geometry: PairGeometry, states: SourceStates, order: Tensor | None = None) -> Selection:
    """The positions that each unit keeps: the top of its ranking, and the tail.

    Args:
        order: int64 [batch, unit, context], another ranking than the interface's own (the Random control).
    """
    order = rank(interface, geometry, states) if order is None else order
    lengths = states.context_lengths
    counts, tails = count(interface, geometry, lengths), interface.rule.tails(lengths)
    return select(order, counts, lengths, tails, geometry.target.layers, geometry.target.kv_heads)


def compile_states(
    interface: Interface, states: SourceStates, selection: Selection, target: ModelAdapter, rotate: bool = False
) -> SparseKV:
    """Target keys and values at the selection, on the target's device (spec 4): keys before RoPE, for `rotate_kv`, unless `rotate`."""
    return placed(interface.compiler(states, selection, dtype=target.dtype, rotary=target.rotary if rotate else None), target)


def placed(kv: SparseKV, target: ModelAdapter) -> SparseKV:
    """The same states in the target's precision and on its device."""
    keys, values = (part.to(device=target.device, dtype=target.dtype) for part in (kv.keys, kv.values))
    return SparseKV(to_device(kv.selection, target.device), keys, values, kv.rotated, kv.identity)


@torch.no_grad()
def transfer(pair: Pair, interface: Interface, states: SourceStates) -> SparseKV:
    """Everything that the target mounts of a context that only the source has read.

    Args:
        states: of the source, on any device, with the query's hidden states unless nothing is ranked.
    Returns:
        rotated keys and values on the target's device. Their identity names source, target, interface and budget, so that
        they never answer a look-up for exact states.
    """
    states = states.to(pair.interface_device)
    kv = compile_states(interface, states, choose(interface, pair.geometry, states), pair.target, rotate=True)
    identity = {
        **kv.identity, **{f"interface.{name}": value for name, value in interface.identity.items()}, "target": pair.target.fingerprint,
        "retention": repr(float(interface.rule.retention)), "tail_tokens": str(interface.rule.tail_tokens),
    }  # fmt: skip
    return SparseKV(kv.selection, kv.keys, kv.values, kv.rotated, identity)


def random_order(context_ids: Tensor, context_lengths: Tensor, prefix_lengths: Tensor, units: int, seed: int = 0) -> Tensor:
    """An independent uniform ranking of the prefix for every unit: int64 [batch, unit, context].

    Drawn from the seed and the context's tokens alone: the same in any batch, at any padding and in every run.

    Args:
        context_ids: int64 [batch, context]. context_lengths, prefix_lengths: int64 [batch], N and n.
    """
    width = context_ids.shape[1]
    keys = torch.arange(width, dtype=torch.float64).expand(len(context_lengths), units, width).clone() + 1  # after every draw in [0, 1)
    for row, (length, prefix) in enumerate(zip(context_lengths.tolist(), prefix_lengths.tolist())):
        generator = seeded(seed, "random order", context_ids[row, :length].tolist())
        keys[row, :, :prefix] = torch.rand(units, prefix, generator=generator, dtype=torch.float64)
    return keys.argsort(dim=-1, stable=True).to(context_ids.device)


def seeded(seed: int, purpose: str, content: object) -> torch.Generator:
    """A CPU generator that depends on the seed, the purpose and the content's text, and on nothing else."""
    digest = hashlib.sha256(f"{seed}|{purpose}|{content}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
