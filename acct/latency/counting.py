"""Floating-point operations and bytes of each stage, from shapes alone (spec 9): what the roofline needs.

Matrix products count two operations for each multiply-add, attention its causal half, elementwise work one operation a number where it
dominates (the Cartographer's score). Bytes are what has to cross memory once: inputs that are read, weights, and the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acct.allocator.budget import BudgetRule
from acct.cartographer import CartographerShape
from acct.compiler.residual import CONDITIONS, ResidualShape
from acct.geometry import ModelGeometry, PairGeometry


@dataclass(frozen=True)
class Work:
    """Operations and bytes of one call."""

    flops: float
    bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)


def prefill(geometry: ModelGeometry, inner: int, tokens: int, width: int) -> Work:
    """A causal run over `tokens` without logits.

    Args:
        inner: feed-forward width of the decoder. width: bytes of one number of weights and states.
    """
    queries, heads = geometry.query_heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim
    weights = geometry.layers * (2 * geometry.hidden * (queries + heads) + 3 * geometry.hidden * inner)
    attention = geometry.layers * 4 * queries * tokens * (tokens + 1) / 2
    states = 2 * geometry.layers * heads * tokens
    return Work(2.0 * weights * tokens + attention, width * (weights + states + tokens * geometry.hidden))


def step(geometry: ModelGeometry, inner: int, tokens: int, slots: float, width: int) -> Work:
    """`tokens` after a cache that holds `slots` keys and values in all units together, with logits of the last one."""
    run = prefill(geometry, inner, tokens, width)
    head = geometry.hidden * geometry.vocabulary
    seen = slots * geometry.queries_per_head * geometry.head_dim * 4 * tokens
    return Work(run.flops + seen + 2.0 * head, run.bytes + width * (2 * slots * geometry.head_dim + head))


def cartographer(geometry: PairGeometry, shape: CartographerShape, tokens: int, query: int, width: int) -> Work:
    """Scores of every position for every unit, and their ranking (sorting counts no operation)."""
    w, d, both, pairs = shape.width, shape.attention_width, tokens + query, geometry.units * tokens
    shared = 2.0 * both * (geometry.source.hidden * w + 2 * w * d) + 2.0 * tokens * (w + shape.position_features) * d
    attention = 4.0 * shape.query_slots * both * d + 2.0 * shape.query_slots * w * d
    units = geometry.units * (4.0 * shape.code_width * d + 16.0 * d * d + 2.0 * shape.query_slots * d * d)  # codes, FiLM, slots
    score = pairs * d * (4.0 * shape.query_slots + 4)  # matches and their mix; addition, GELU, readout
    read = both * geometry.source.hidden * width + 4 * shape.parameters(geometry)
    return Work(shared + attention + units + score, read + pairs * (4 + 8))


def allocator(geometry: PairGeometry, rule: BudgetRule, tokens: int) -> Work:
    """Cached counts and the selection: reads the order, writes positions, ranks and flags of the slots."""
    slots = geometry.units * rule.resolve(tokens).mean_capacity
    return Work(0.0, geometry.units * tokens * 8 + slots * (8 + 8 + 1))


def compiler(
    geometry: PairGeometry,
    shape: ResidualShape,
    rule: BudgetRule,
    tokens: int,
    width: int,
    union: int | None = None,
    reads: int = 1,
    shared: int = 0,
) -> Work:
    """Bridge and residual at the selected slots.

    Args:
        geometry: as the Bridge sees it. union: positions that any unit keeps; None for all of the context. reads: source vectors that the
            Bridge reads for a slot. shared: numbers of a position that a subspace makes its one vector of, 0 without a subspace.
    """
    source, dim = geometry.source, geometry.target.head_dim
    slots, features = geometry.units * rule.resolve(tokens).mean_capacity, reads * source.head_dim
    w, inner, latents = shape.width, shape.feed_forward_width, shape.latents
    bridge = 4.0 * slots * features * dim
    embedding = 2.0 * tokens * (1 + shape.taps) * source.hidden * w
    encoder = shape.depth * (
        4.0 * tokens * w * w + 4.0 * latents * tokens * w + latents * (12.0 * w * w + 4.0 * latents * w + 6.0 * w * inner)
    )
    kept = tokens if union is None else union
    decoder = shape.depth * (4.0 * kept * w * w + 4.0 * kept * latents * w + 6.0 * kept * w * inner + 4.0 * latents * w * w)
    readout = 4.0 * slots * (w + CONDITIONS) * dim
    weights = 4 * (shape.parameters() + 2 * geometry.units * (features + 1) * dim)
    read = width * (2 * slots * features + tokens * (1 + shape.taps) * source.hidden)
    weights += 4 * shared * source.head_dim
    read += width * tokens * shared
    subspace = 2.0 * tokens * shared * source.head_dim
    return Work(subspace + bridge + embedding + encoder + decoder + readout, read + weights + 2 * slots * dim * width)


def movement(geometry: PairGeometry, rule: BudgetRule, tokens: int, width: int, rotated: bool) -> Work:
    """Packing (both tensors read and written) or rotation (keys only, three operations a number)."""
    numbers = geometry.units * rule.resolve(tokens).mean_capacity * geometry.target.head_dim
    return Work(3.0 * numbers, 2 * numbers * width) if rotated else Work(0.0, 4 * numbers * width)


def ridge(geometry: PairGeometry, layers: int, tokens: int, width: int, heads: str = "local") -> Work:
    """The full-length linear map of keys and values, every position of every unit.

    Args:
        layers: source layers that a map reads. heads: "local", one head of each for a unit, or "all" of them for all units of a layer.
    """
    source, target = geometry.source, geometry.target
    groups, read, given = (geometry.units, 1, 1) if heads == "local" else (target.layers, source.kv_heads, target.kv_heads)
    features, outputs = layers * read * source.head_dim, given * target.head_dim
    moved = width * 2 * tokens * groups * (features + outputs)
    return Work(4.0 * groups * tokens * features * outputs, moved + 4 * 2 * groups * features * outputs)


def ideal_bytes(geometry: PairGeometry, rule: BudgetRule, tokens: int, width: int) -> int:
    """2 P k d numbers: what a mounted state cannot go below."""
    return 2 * geometry.units * rule.resolve(tokens).mean_capacity * geometry.target.head_dim * width


def inner_width(configuration: Mapping[str, Any]) -> int:
    """Feed-forward width of a decoder's configuration."""
    return int(configuration["intermediate_size"])
