"""How much of the context the target keeps (spec 3)."""

from __future__ import annotations

from dataclasses import dataclass

from acct.config.fields import check_range


@dataclass
class BudgetConfig:
    """Retention and tail.

    Attributes:
        retention: rho, kept fraction of the context per unit on average, in (0, 1]; 0.25 is 4x compression.
        tail_tokens: tau, last context tokens that every unit keeps.
    """

    retention: float = 0.25
    tail_tokens: int = 32

    def __post_init__(self) -> None:
        check_range("budget.retention", self.retention, 0, 1, "It is the kept fraction: write 0.25 for 4x compression.", open_low=True)
        check_range("budget.tail_tokens", self.tail_tokens, 0, float("inf"))
