"""`acct diagnose`: what is measured on held-out examples of a trained run, for the figures."""

from __future__ import annotations

from dataclasses import dataclass

from acct.config.fields import check_range


@dataclass
class DiagnosisConfig:
    """Sizes of the diagnosis.

    Attributes:
        examples: held-out examples, the first of their manifest. batch: read at once; changes speed only.
        example: which of them the figure of surviving tokens shows.
        missing: `acct figures` first diagnoses finished runs that were not yet.
    """

    examples: int = 32
    batch: int = 8
    example: int = 0
    missing: bool = False

    def __post_init__(self) -> None:
        check_range("diagnosis.examples", self.examples, 1, float("inf"))
        check_range("diagnosis.batch", self.batch, 1, float("inf"))
        check_range("diagnosis.example", self.example, 0, self.examples - 1, "It is one of diagnosis.examples, counted from 0.")
