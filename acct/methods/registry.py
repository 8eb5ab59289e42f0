"""The methods by name, in the order of the tables. A new one is one class, one line here and one test."""

from __future__ import annotations

from collections.abc import Iterable

from acct.errors import UnknownName
from acct.methods.ablations import BridgeOnly, NativeKeys, NativeKV, NativeValues, RandomSelection
from acct.methods.acct import ACCT
from acct.methods.base import Method
from acct.methods.compressors.base import SUFFIX, Compressor
from acct.methods.compressors.expected_attention import ExpectedAttention, ExpectedAttentionQueryAware
from acct.methods.compressors.observed_attention import ObservedAttention, ObservedAttentionQueryAware
from acct.methods.compressors.pyramidkv import PyramidKV, PyramidKVQueryAware
from acct.methods.compressors.snapkv import SnapKV, SnapKVQueryAware
from acct.methods.controls import Noise, RawSource, WrongDocument, Zeros
from acct.methods.references import NoContext, SourceFull, TargetFull
from acct.methods.ridge import ridge_row
from acct.methods.ridge_map import map_of_row

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        TargetFull, ACCT, SourceFull, NoContext, NativeKV, RandomSelection, BridgeOnly, Zeros, Noise, WrongDocument, RawSource,
        NativeKeys, NativeValues,
        SnapKV, SnapKVQueryAware, PyramidKV, PyramidKVQueryAware, ObservedAttention, ObservedAttentionQueryAware, ExpectedAttention,
        ExpectedAttentionQueryAware, ridge_row("ridge_1"), ridge_row("ridge_8"), ridge_row("ridge_1_kept"), ridge_row("ridge_8_kept"),
        ridge_row("ridge_1_all"), ridge_row("ridge_8_all"),
    )
}  # fmt: skip
DEFAULT = tuple(name for name, method in METHODS.items() if not method.on_request)
COMPRESSORS = frozenset(name for name, method in METHODS.items() if issubclass(method, Compressor))


def get_method(name: str) -> Method:
    """A method by its registry name; linear maps from any number of source layers, ridge_<m>[_all][_kept]."""
    if name not in METHODS and map_of_row(name) is None:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]() if name in METHODS else ridge_row(name)()


def query_aware(names: Iterable[str]) -> tuple[str, ...]:
    """The same methods, every compressor in its query-aware form."""
    return tuple(name + SUFFIX if name in COMPRESSORS and not name.endswith(SUFFIX) else name for name in names)
