"""One batch with what several methods need of it, each computed once and only when asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from acct.compiler.compiler import rotate_kv
from acct.config.compressors import CompressorsConfig
from acct.data.batches import collate, padded
from acct.data.prompts import EncodedExample
from acct.errors import InputError
from acct.methods.ridge_map import RidgeMap
from acct.models.adapter import Capture, ForwardStates, ModelAdapter
from acct.models.pair import Pair
from acct.native import native_of, read_native
from acct.pipeline import Interface, choose, compile_states, placed, random_order, rank
from acct.selection import (
    batch_index,
    concatenate,
    full_selection,
    gather_native,
    gather_source,
    row_counts,
    rows,
    slots_of_rows,
    to_device,
    unit_index,
)
from acct.source import read_source
from acct.types import NativeStates, Selection, SourceStates, SparseKV, TokenBatch


class Stopwatch:
    """Seconds of named phases. Nested phases are taken out of the outer one, so that the sum is the wall time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            whole = time.perf_counter() - start
            own = whole - self._inner.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + own
            if self._inner:
                self._inner[-1] += whole


class Prepared:
    """Encoded examples of one task as a batch, and what methods share: source states, native states, ranking, selection, compiled KV.

    Args:
        pair: both frozen models. interface: the trained modules.
        examples: the rows of the batch, any lengths.
        strangers: for each row another example whose document differs, for the wrong-document control; None where there is none.
        seed: of random orders and noise. clock: receives the seconds of each shared step.
        compressors: settings of the same-model compressors; None takes the defaults.
        observes: a compressor is among the methods: native states are taken from the pass that its scores need, not from one of their own.
    """

    def __init__(
        self, pair: Pair, interface: Interface, examples: Sequence[EncodedExample],
        strangers: Sequence[EncodedExample | None] | None = None, seed: int = 0, clock: Stopwatch | None = None,
        compressors: CompressorsConfig | None = None, observes: bool = False,
    ):  # fmt: skip
        self.pair, self.interface, self.examples, self.seed = pair, interface, list(examples), seed
        self.strangers = list(strangers) if strangers is not None else [None] * len(self.examples)
        self.clock = clock or Stopwatch()
        self.compressors, self.observes = compressors or CompressorsConfig(), observes
        self.batch: TokenBatch = collate(self.examples, pair.tokenizer.pad_token_id)

    def on(self, adapter: ModelAdapter) -> TokenBatch:
        """The batch on a model's device."""
        return self.batch.to(adapter.device)

    @cached_property
    def joined(self) -> tuple[Tensor, Tensor]:
        """[context; query]: ids [batch, sequence] and lengths [batch]."""
        return self.batch.joined()

    @cached_property
    def bare(self) -> tuple[Tensor, Tensor]:
        """The query as it stands without a context: ids [batch, sequence] and lengths [batch]."""
        return padded([example.bare_query_ids for example in self.examples], self.pair.tokenizer.pad_token_id)

    @cached_property
    def source(self) -> SourceStates:
        """What the source computes over [context; query]."""
        with self.clock.phase("source"):
            read = read_source(self.pair.source, self.on(self.pair.source), self.interface.utility_rows)
            return read.to(self.pair.interface_device)

    @cached_property
    def native(self) -> NativeStates:
        """What the target itself computes over [context; query]."""
        target = self.pair.target
        with self.clock.phase("native"):
            if self.observes:
                return native_of(target, self.on(target), replace(self.observed, queries_pre=None))
            return read_native(target, self.on(target))

    @cached_property
    def observed(self) -> ForwardStates:
        """The target's queries, keys and values over all of [context; query], before RoPE: what compressors score."""
        target = self.pair.target
        ids, lengths = (tensor.to(target.device) for tensor in self.joined)
        with self.clock.phase("observed"), torch.no_grad():
            return target.forward(ids, lengths, Capture(keys=True, queries=True))

    @cached_property
    def order(self) -> Tensor:
        """ACCT's ranking: int64 [batch, unit, context]."""
        with self.clock.phase("cartographer"):
            return rank(self.interface, self.pair.geometry, self.source)

    @cached_property
    def selection(self) -> Selection:
        """ACCT's selection."""
        with self.clock.phase("allocator"):
            return choose(self.interface, self.pair.geometry, self.source, self.order)

    @cached_property
    def random_selection(self) -> Selection:
        """Random orders under ACCT's learned counts."""
        states = self.source
        prefix = states.context_lengths - self.interface.rule.tails(states.context_lengths)
        order = random_order(states.context_ids, states.context_lengths, prefix, self.pair.geometry.units, self.seed)
        return choose(self.interface, self.pair.geometry, states, order)

    @cached_property
    def compiled_pre(self) -> SparseKV:
        """ACCT's keys before RoPE and values."""
        with self.clock.phase("compiler"):
            return compile_states(self.interface, self.source, self.selection, self.pair.target)

    @cached_property
    def compiled(self) -> SparseKV:
        """ACCT's keys and values, rotated."""
        return rotate_kv(self.pair.target, self.compiled_pre)

    @cached_property
    def bridged(self) -> SparseKV:
        """The Bridge alone at ACCT's positions, rotated."""
        kv = self.interface.compiler(self.source, self.selection, use_residual=False)
        return rotate_kv(self.pair.target, placed(kv, self.pair.target))

    def native_at(self, selection: Selection) -> SparseKV:
        """The target's own keys and values at a selection, rotated."""
        selection = to_device(selection, self.pair.target.device)
        keys, values = gather_native(selection, self.native)
        return rotate_kv(self.pair.target, SparseKV(selection, keys, values, rotated=False))

    def raw_at(self, selection: Selection) -> SparseKV:
        """The source's keys and values at a selection as they are, rotated by the target."""
        keys, values = gather_source(selection, self.source, self.pair.geometry)
        return rotate_kv(self.pair.target, placed(SparseKV(selection, keys, values, rotated=False), self.pair.target))

    def mapped_by(self, linear: RidgeMap, selection: Selection | None = None) -> SparseKV:
        """A linear map's keys and values at every context position, or at those of a selection, rotated."""
        target, states = self.pair.target, self.source
        if selection is None:
            selection = full_selection(states.context_lengths, self.pair.geometry.target.layers, self.pair.geometry.target.kv_heads)
        with self.clock.phase("linear map"):
            keys, values = linear(states, target.dtype)
        where = (batch_index(selection), unit_index(selection), selection.positions)
        return rotate_kv(target, placed(SparseKV(selection, keys[where], values[where], rotated=False), target))

    @cached_property
    def transferred_strangers(self) -> SparseKV:
        """For each row the compiled states of its stranger, under the stranger's own query, positions and N.

        Strangers that are rows of this batch share its states; the others are transferred apart.
        Raises:
            InputError: a row has no stranger.
        """
        place = {example.id: row for row, example in enumerate(self.examples)}
        outside: list[EncodedExample] = []
        index: list[int] = []
        for example, stranger in zip(self.examples, self.strangers):
            if stranger is None:
                raise InputError(f"{example.id}: no other document in this sample; the wrong-document control needs at least two.")
            if stranger.id not in place:
                place[stranger.id] = len(self.examples) + len(outside)
                outside.append(stranger)
            index.append(place[stranger.id])
        own = self.compiled
        if not outside:
            return take_rows(own, index)
        with self.clock.phase("strangers"):
            other = Prepared(self.pair, self.interface, outside, seed=self.seed).compiled
        return take_rows(stack(own, other), index)


def take_rows(kv: SparseKV, index: Sequence[int]) -> SparseKV:
    """The states of chosen examples, in the order given."""
    slots = slots_of_rows(kv.selection, index)
    return SparseKV(rows(kv.selection, index), kv.keys[slots], kv.values[slots], kv.rotated, kv.identity)


def stack(first: SparseKV, second: SparseKV) -> SparseKV:
    """Two batches as one, the rows of `first` before those of `second`."""
    per_layer = [row_counts(kv.selection).sum(dim=(1, 2)).tolist() for kv in (first, second)]

    def together(ours: Tensor, theirs: Tensor) -> Tensor:
        pieces = zip(ours.split(per_layer[0]), theirs.split(per_layer[1]))  # packed order is layer first, then batch
        return torch.cat([part for pair in pieces for part in pair])

    joined = concatenate([first.selection, second.selection])
    return SparseKV(joined, together(first.keys, second.keys), together(first.values, second.values), first.rotated, first.identity)
