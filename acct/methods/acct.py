"""The method itself: `acct.pipeline` on the batch's source states."""

from __future__ import annotations

from acct.methods.base import SparseMethod
from acct.methods.prepared import Prepared
from acct.types import SparseKV


class ACCT(SparseMethod):
    """Ranking, counts and compiled states, all from the source."""

    name = "acct"

    def states(self, prepared: Prepared) -> SparseKV:
        return prepared.compiled
