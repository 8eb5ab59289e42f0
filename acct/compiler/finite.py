"""Fits in closed form refuse states that are not finite, before anything is summed."""

from __future__ import annotations

import torch
from torch import Tensor

from acct.errors import InputError


def check_finite(vectors: Tensor, what: str, where: str, reader: str) -> None:
    """Raises unless all numbers of vectors [row, in] are finite.

    Args:
        what, where, reader: for the message: "the source keys", "selected slots", "the Bridge".
    Raises:
        InputError: how many rows hold NaN or Inf, and what to check.
    """
    finite = torch.isfinite(vectors)
    if not bool(finite.all()):
        raise InputError(
            f"{what} at {int((~finite).any(-1).sum())} of {len(vectors)} {where} are NaN or Inf; {reader} needs finite states. "
            "Check the model's weights and its dtype (float16 overflows)."
        )
