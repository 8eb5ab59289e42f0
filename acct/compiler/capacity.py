"""Widths of the interface from the pair's geometry, exact parameter counts, and their limits (spec 6, paper E).

    ceil_a(x) = a ceil(x / a),  D~ = (D_S + D_T) / 2
    w_M = ceil_32(D~ / 8),  d_M = ceil_32(w_M / 4),  c_M = 32
    w_W = ceil_32(D~ / 8),  f_W = ceil_32(8 w_W / 3),  m_W = 64,  D = 2, or 3 when max(D_S, D_T) >= 5120

in integer arithmetic. An override of a width takes part in the widths derived from it (w_W = 64 gives f_W = ceil_32(512 / 3)).
Limits C_M and C_W check instantiated counts of the Cartographer and of the residual; they introduce nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from acct.cartographer import CartographerShape
from acct.compiler.residual import ResidualShape
from acct.errors import ConfigError
from acct.geometry import PairGeometry

CARTOGRAPHER_LIMIT = 8_000_000
RESIDUAL_LIMIT = 256_000_000
_ALIGNMENT = 32


def aligned(numerator: int, denominator: int = 1, alignment: int = _ALIGNMENT) -> int:
    """ceil_a(numerator / denominator), exactly."""
    return alignment * -(-numerator // (denominator * alignment))


@dataclass(frozen=True)
class CapacityPreset:
    """Resolved widths, and which of them were set by hand.

    Attributes:
        model_width, attention_width, embedding_width: w_M, d_M, c_M of the Cartographer.
        width, feed_forward_width, depth, latents: w_W, f_W, D, m_W of the residual.
        overrides: the fields that do not follow the rule, by name.
    """

    model_width: int
    attention_width: int
    embedding_width: int
    width: int
    feed_forward_width: int
    depth: int
    latents: int
    overrides: Mapping[str, int] = field(default_factory=dict)

    def cartographer(self, **options: Any) -> CartographerShape:
        """The Cartographer's shape; `options` are its other fields."""
        return CartographerShape(self.model_width, self.attention_width, self.embedding_width, **options)

    def residual(self, geometry: PairGeometry, **options: Any) -> ResidualShape:
        """The residual's shape for a pair; `options` are its other fields."""
        widths = (self.width, self.feed_forward_width, self.depth, self.latents)
        return ResidualShape(geometry.source.hidden, geometry.units, geometry.target.head_dim, *widths, **options)


def preset(geometry: PairGeometry, **overrides: int | None) -> CapacityPreset:
    """The capacity rule for a directed pair.

    Args:
        overrides: any field of CapacityPreset by name; None follows the rule.
    Raises:
        ConfigError: an override that is unknown or below 1.
    """
    known = ("model_width", "attention_width", "embedding_width", "width", "feed_forward_width", "depth", "latents")
    given = {name: value for name, value in overrides.items() if value is not None}
    for name, value in given.items():
        if name not in known or value < 1:
            raise ConfigError(f"a capacity override must be one of {', '.join(known)} and at least 1, got {name}={value}.")
    both = geometry.source.hidden + geometry.target.hidden
    model_width = given.get("model_width", aligned(both, 16))
    width = given.get("width", aligned(both, 16))
    deep = max(geometry.source.hidden, geometry.target.hidden) >= 5120
    rule = {
        "model_width": model_width,
        "attention_width": aligned(model_width, 4),
        "embedding_width": 32,
        "width": width,
        "feed_forward_width": aligned(8 * width, 3),
        "depth": 3 if deep else 2,
        "latents": 64,
    }
    return CapacityPreset(**{**rule, **given}, overrides=given)


@dataclass(frozen=True)
class ParameterCounts:
    """Exact counts, named as in the paper's Tables 5 to 7.

    Attributes:
        cartographer: P_M. allocator: P_R = P. residual: P_W. bridge: P_B.
    """

    cartographer: int
    allocator: int
    residual: int
    bridge: int

    @property
    def compiler(self) -> int:
        """P_W + P_B."""
        return self.residual + self.bridge

    @property
    def gradient_optimised(self) -> int:
        """P_M + P_R + P_W."""
        return self.cartographer + self.allocator + self.residual

    @property
    def total(self) -> int:
        """P_M + P_R + P_W + P_B."""
        return self.gradient_optimised + self.bridge


def bridge_parameters(geometry: PairGeometry, reads: int = 1) -> int:
    """P_B = 2 P (d_S + 1) d_T; with several source vectors for a slot, their widths in place of d_S."""
    return 2 * geometry.units * (reads * geometry.source.head_dim + 1) * geometry.target.head_dim


def parameter_counts(geometry: PairGeometry, cartographer: CartographerShape, residual: ResidualShape, reads: int = 1) -> ParameterCounts:
    """Closed forms for given shapes; they equal `count_parameters` of the instantiated modules."""
    return ParameterCounts(cartographer.parameters(geometry), geometry.units, residual.parameters(), bridge_parameters(geometry, reads))


def count_parameters(module: nn.Module) -> int:
    """Instantiated parameters, the frozen Bridge's included; also on the meta device."""
    return sum(parameter.numel() for parameter in module.parameters())


@dataclass(frozen=True)
class CapacityCheck:
    """The outcome of the limits, saved beside the modules.

    Attributes:
        preset: resolved widths with their overrides. counts: checked against the limits C_M and C_W.
    """

    preset: CapacityPreset
    counts: ParameterCounts
    cartographer_limit: int
    residual_limit: int

    @property
    def within_limits(self) -> bool:
        return self.counts.cartographer <= self.cartographer_limit and self.counts.residual <= self.residual_limit

    def record(self) -> dict[str, Any]:
        """Plain numbers for a JSON card."""
        counts = self.counts
        derived = {"compiler": counts.compiler, "gradient_optimised": counts.gradient_optimised, "total": counts.total}
        widths = asdict(self.preset)
        overrides = widths.pop("overrides")
        limits = {"cartographer": self.cartographer_limit, "residual": self.residual_limit}
        return {
            "widths": widths,
            "overrides": dict(overrides),
            "counts": {**asdict(counts), **derived},
            "limits": limits,
            "within_limits": self.within_limits,
        }


def check_limits(
    capacity: CapacityPreset,
    counts: ParameterCounts,
    cartographer_limit: int = CARTOGRAPHER_LIMIT,
    residual_limit: int = RESIDUAL_LIMIT,
    strict: bool = True,
) -> CapacityCheck:
    """Compare counts with the limits.

    Args:
        strict: False returns a failed check instead of raising.
    Raises:
        ConfigError: a count exceeds its limit.
    """
    check = CapacityCheck(capacity, counts, cartographer_limit, residual_limit)
    if strict and not check.within_limits:
        for name, count, limit in (
            ("cartographer", counts.cartographer, cartographer_limit),
            ("residual", counts.residual, residual_limit),
        ):
            if count > limit:
                setting = "cartographer.limit" if name == "cartographer" else "compiler.limit"
                raise ConfigError(
                    f"the {name} has {count:,} parameters; the limit is {limit:,} (overrides: {dict(capacity.overrides) or 'none'}). "
                    f"Lower its widths or raise {setting}."
                )
    return check
