"""Rows without a transfer: the target reads everything, the source answers alone, the target has no context."""

from __future__ import annotations

from acct.methods.base import Method, Mount
from acct.methods.prepared import Prepared


class TargetFull(Method):
    """The target's own plain run over [context; query]: no state of the transfer's path is used."""

    name = "target_full"

    def mount(self, prepared: Prepared) -> Mount:
        target = prepared.pair.target
        ids, lengths = prepared.joined
        return Mount(target, None, ids.to(target.device), lengths.to(target.device))


class SourceFull(Method):
    """The source answers by itself over [context; query]: the floor under every claim of a gain from the target."""

    name = "source_full"

    def mount(self, prepared: Prepared) -> Mount:
        source = prepared.pair.source
        ids, lengths = prepared.joined
        return Mount(source, None, ids.to(source.device), lengths.to(source.device))


class NoContext(Method):
    """The target reads the query alone: what it knows, or guesses, without the document."""

    name = "no_context"

    def mount(self, prepared: Prepared) -> Mount:
        target = prepared.pair.target
        ids, lengths = prepared.bare
        return Mount(target, None, ids.to(target.device), lengths.to(target.device))
