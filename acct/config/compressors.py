"""Same-model compressors, rows beyond the paper (spec 8, 11): their settings, at kvpress's defaults where kvpress has one."""

from __future__ import annotations

from dataclasses import dataclass

from acct.config.fields import check_choice, check_range
from acct.errors import ConfigError

PYRAMIDS = ("kvpress", "beside_window")


@dataclass
class CompressorsConfig:
    """Settings of SnapKV, PyramidKV, observed attention and expected attention.

    Attributes:
        query_aware: compressors named without a suffix score [context; query] and are recorded as <name>_query_aware; false, kvpress's
            way, scores the context alone, before any question. Both may also be named side by side in evaluation.methods.
        window: last tokens whose attention SnapKV and PyramidKV observe. kernel: odd width of the average that smooths it.
        window_share: most of a unit's mean capacity that window tokens of the context may take. kvpress has no such limit (1 means
            none but the capacity), and then keeps nothing but the window wherever rho N <= window.
        beta: steepness of the pyramid of layers. pyramid: "kvpress" gives all layers the same (so that PyramidKV is SnapKV) wherever the
            last layer would hold less than the window, at 4x below 4 window beta = 5,120 tokens; "beside_window" shares what is kept
            beside the window, a pyramid at every length, as in the authors' code.
        future_positions: positions after the sequence over which expected attention averages RoPE. sinks: first tokens that it keeps,
            left out of its statistics. covariance, value_norm: use the queries' covariance, and weigh by the norm of values.
            epsilon: added before that weighing.
        block: most attention weights, or products of as many numbers, held at once; changes memory and speed only.
    """

    query_aware: bool = False
    window: int = 64
    kernel: int = 5
    window_share: float = 0.5
    beta: float = 20.0
    pyramid: str = "kvpress"
    future_positions: int = 512
    sinks: int = 4
    covariance: bool = True
    value_norm: bool = True
    epsilon: float = 0.0
    block: int = 2**24

    def __post_init__(self) -> None:
        name = "evaluation.compressors"
        for field in ("window", "kernel", "beta", "future_positions", "block"):
            check_range(f"{name}.{field}", getattr(self, field), 1, float("inf"))
        for field in ("sinks", "epsilon"):
            check_range(f"{name}.{field}", getattr(self, field), 0, float("inf"))
        check_range(f"{name}.window_share", self.window_share, 0, 1)
        check_choice(f"{name}.pyramid", self.pyramid, PYRAMIDS)
        if self.kernel % 2 == 0:
            raise ConfigError(f"{name}.kernel must be odd, so that the average has a middle, got {self.kernel}. Write {self.kernel + 1}.")
