"""One part of the method replaced, nothing retrained (spec 8, Table 3)."""

from __future__ import annotations

from acct.methods.base import SparseMethod
from acct.methods.prepared import Prepared
from acct.types import SparseKV


class NativeKV(SparseMethod):
    """The target's own keys and values at ACCT's selection: the bound of the Compiler."""

    name = "native_kv"

    def states(self, prepared: Prepared) -> SparseKV:
        return prepared.native_at(prepared.selection)


class RandomSelection(SparseMethod):
    """Random orders under ACCT's learned counts, with the target's own keys and values at those positions.

    Deliberately generous: the states are exact, so that a Compiler retrained for random positions (the paper's Random, the
    experiment table3_random) cannot do much better.
    """

    name = "random"

    def states(self, prepared: Prepared) -> SparseKV:
        return prepared.native_at(prepared.random_selection)


class BridgeOnly(SparseMethod):
    """ACCT's positions, the residual removed."""

    name = "bridge_only"

    def states(self, prepared: Prepared) -> SparseKV:
        return prepared.bridged
