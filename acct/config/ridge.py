"""Closed-form linear maps of whole contexts, rows beyond the paper: which are fitted, and how (spec 11)."""

from __future__ import annotations

from dataclasses import dataclass, field

from acct.config.fields import check_range, silent


@dataclass
class RidgeConfig:
    """What `acct train stage=ridge` fits on the Compiler's training examples, at every context position.

    Attributes:
        source_layers: m of each head-local map, row `ridge_<m>`; more than the source has are all of them.
        all_heads: m of each map that reads every KV head of its m layers, row `ridge_<m>_all`.
        penalty: lambda of the uncentred ridge, on sums over positions.
        gigabytes: of float64 sums held at once; what does not fit takes further passes over the examples.
    """

    source_layers: list[int] = silent([1, 8], "few and many of the nearest source layers; each is a row ridge_<m>", "11")  # noqa: RUF009
    all_heads: list[int] = field(default_factory=list)
    penalty: float = 1e-2
    gigabytes: float = 4.0

    def __post_init__(self) -> None:
        for name in ("source_layers", "all_heads"):
            for count in getattr(self, name):
                check_range(f"ridge.{name}", count, 1, float("inf"))
        check_range("ridge.penalty", self.penalty, 0, float("inf"))
        check_range("ridge.gigabytes", self.gigabytes, 0, float("inf"), open_low=True)
