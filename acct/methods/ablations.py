"""One part of the method replaced, nothing retrained (spec 8, Table 3)."""

from __future__ import annotations

from typing import ClassVar

from acct.methods.base import SparseMethod
from acct.methods.prepared import Prepared
from acct.types import SparseKV


class NativeKV(SparseMethod):
    """The target's own keys and values at ACCT's selection: the bound of the Compiler."""

    name = "native_kv"
    compiles: ClassVar[bool] = False

    def states(self, prepared: Prepared) -> SparseKV:
        return prepared.native_at(prepared.selection)


class RandomSelection(SparseMethod):
    """Random orders under ACCT's learned counts, with the target's own keys and values at those positions.

    Deliberately generous: the states are exact, so that a Compiler retrained for random positions (the paper's Random, the
    experiment table3_random) cannot do much better.
    """

    name = "random"
    compiles: ClassVar[bool] = False

    def states(self, prepared: Prepared) -> SparseKV:
        return prepared.native_at(prepared.random_selection)


class BridgeOnly(SparseMethod):
    """ACCT's positions, the residual removed."""

    name = "bridge_only"

    def states(self, prepared: Prepared) -> SparseKV:
        return prepared.bridged


class NativeKeys(SparseMethod):
    """ACCT's positions and values under the target's own keys: what compiled values alone cost (spec 11, exact keys with mapped values)."""

    name = "native_keys"
    on_request: ClassVar[bool] = True

    def states(self, prepared: Prepared) -> SparseKV:
        return SparseKV(prepared.compiled.selection, prepared.native_at(prepared.selection).keys, prepared.compiled.values, rotated=True)


class NativeValues(SparseMethod):
    """ACCT's positions and keys over the target's own values: what compiled keys alone cost."""

    name = "native_values"
    on_request: ClassVar[bool] = True

    def states(self, prepared: Prepared) -> SparseKV:
        return SparseKV(prepared.compiled.selection, prepared.compiled.keys, prepared.native_at(prepared.selection).values, rotated=True)
