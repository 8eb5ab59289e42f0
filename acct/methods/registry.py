"""The methods by name, in the order of the tables. A new one is one class, one line here and one test."""

from __future__ import annotations

from acct.errors import UnknownName
from acct.methods.ablations import BridgeOnly, NativeKV, RandomSelection
from acct.methods.acct import ACCT
from acct.methods.base import Method
from acct.methods.controls import Noise, RawSource, WrongDocument, Zeros
from acct.methods.references import NoContext, SourceFull, TargetFull

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        TargetFull, ACCT, SourceFull, NoContext, NativeKV, RandomSelection, BridgeOnly, Zeros, Noise, WrongDocument, RawSource,
    )
}  # fmt: skip


def get_method(name: str) -> Method:
    """A method by its registry name."""
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]()
