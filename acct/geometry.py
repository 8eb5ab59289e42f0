"""Shapes of one model and of a directed pair, and the fixed correspondences between them (spec 3, 4; paper A.2.1).

A target *unit* p = l * H_T + h is one KV head of one target layer. The layer map pi_L aligns relative depth and the head
map pi_H wraps around; both are structural correspondences, not claims of equal meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

from acct.errors import ConfigError

HEAD_MAPS = ("modulo", "block", "all")
"""Which KV heads of a source layer a unit's linear map reads: h mod H_S, floor(h H_S / H_T), or every one."""


@dataclass(frozen=True)
class ModelGeometry:
    """What the interface needs to know of a decoder's shape.

    Attributes:
        family: registry name of the adapter ("llama", "qwen2", "qwen3").
        layers: L. kv_heads: H, KV heads per layer. query_heads: H * G. head_dim: d. hidden: D. vocabulary: rows of the embedding.
    """

    family: str
    layers: int
    kv_heads: int
    query_heads: int
    head_dim: int
    hidden: int
    vocabulary: int

    def __post_init__(self) -> None:
        if self.query_heads % self.kv_heads:
            raise ConfigError(f"query heads ({self.query_heads}) must be a multiple of KV heads ({self.kv_heads})")

    @property
    def queries_per_head(self) -> int:
        """G."""
        return self.query_heads // self.kv_heads

    @property
    def units(self) -> int:
        """P = L * H."""
        return self.layers * self.kv_heads


def layer_map(target_layers: int, source_layers: int) -> tuple[int, ...]:
    """pi_L(l) = floor(l (L_S - 1) / (L_T - 1) + 1/2) for every target layer, in integer arithmetic; pi_L(0) = 0 when L_T = 1."""
    if target_layers == 1:
        return (0,)
    step = target_layers - 1
    return tuple((2 * layer * (source_layers - 1) + step) // (2 * step) for layer in range(target_layers))


def head_map(target_heads: int, source_heads: int) -> tuple[int, ...]:
    """pi_H(h) = h mod H_S for every target KV head."""
    return tuple(head % source_heads for head in range(target_heads))


def nearest_layers(middle: int, count: int, layers: int) -> tuple[int, ...]:
    """`count` consecutive layers around `middle`, moved inside [0, layers) at the ends."""
    first = min(max(middle - (count - 1) // 2, 0), layers - count)
    return tuple(range(first, first + count))


def tap_indices(source_layers: int, taps: int = 3) -> tuple[int, ...]:
    """l_j = clip(round(j L_S / 4), 1, L_S), j = 1..3: indices into the returned hidden states, where 0 is the embeddings (spec 1).

    Halves round to the even number, as Python's and PyTorch's `round` do.
    """
    return tuple(min(max(round(j * source_layers / (taps + 1)), 1), source_layers) for j in range(1, taps + 1))


@dataclass(frozen=True)
class PairGeometry:
    """A directed pair S -> T."""

    source: ModelGeometry
    target: ModelGeometry

    @property
    def units(self) -> int:
        """P = L_T * H_T."""
        return self.target.units

    def unit(self, layer: int, head: int) -> int:
        return layer * self.target.kv_heads + head

    def unit_layers(self) -> tuple[int, ...]:
        """Target layer of each unit."""
        return tuple(p // self.target.kv_heads for p in range(self.units))

    def unit_heads(self) -> tuple[int, ...]:
        """Target KV head of each unit."""
        return tuple(p % self.target.kv_heads for p in range(self.units))

    def source_layers(self) -> tuple[int, ...]:
        """pi_L of each unit."""
        by_layer = layer_map(self.target.layers, self.source.layers)
        return tuple(by_layer[layer] for layer in self.unit_layers())

    def source_heads(self) -> tuple[int, ...]:
        """pi_H of each unit."""
        by_head = head_map(self.target.kv_heads, self.source.kv_heads)
        return tuple(by_head[head] for head in self.unit_heads())

    def source_reads(self, layers: int = 1, heads: str = "modulo") -> tuple[tuple[int, ...], ...]:
        """The source vectors [layer * head] that a linear map of each unit reads, layer first; (pi_L, pi_H) by default.

        Args:
            layers: source layers nearest to pi_L. heads: of HEAD_MAPS: pi_H, the head at the same relative place, or every head.
        Raises:
            ConfigError: more layers than there are, or an unknown head map.
        """
        if not 1 <= layers <= self.source.layers:
            raise ConfigError(f"a linear map reads 1 to {self.source.layers} source layers, got {layers}.")
        if heads not in HEAD_MAPS:
            raise ConfigError(f"the head map must be one of {', '.join(HEAD_MAPS)}, got {heads!r}.")
        own, count = self.source_heads(), self.source.kv_heads
        if heads == "block":
            own = tuple(head * count // self.target.kv_heads for head in self.unit_heads())
        chosen = [range(count) if heads == "all" else (head,) for head in own]
        near = [nearest_layers(middle, layers, self.source.layers) for middle in self.source_layers()]
        return tuple(tuple(layer * count + head for layer in middle for head in read) for middle, read in zip(near, chosen))
