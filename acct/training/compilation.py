"""Third stage: the Bridge in closed form, then the residual from zero under the five-term loss (spec 4, 5; paper B.3).

A step costs one source forward over the context, one native target forward over [c; q], the Compiler, and the query's tokens mounted
twice. All but the Compiler and the student's query pass depend on frozen models and frozen selections only. With
`training.compiler.regroup=false` batches keep their members in all epochs, and what fits into `training.cache_gigabytes` is computed
once, in the pass that collects the Bridge's statistics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from acct.cache import extend, mounted
from acct.compiler.bridge import Bridge, BridgeStatistics
from acct.compiler.compiler import Compiler, rotate_kv
from acct.compiler.embedding import EmbeddingStatistics
from acct.compiler.grouped import UnitGroups
from acct.compiler.readout import ReadoutStatistics
from acct.compiler.residual import Residual
from acct.compiler.subspace import Subspace, SubspaceStatistics
from acct.data.batches import padded
from acct.generation import stop_tokens
from acct.losses.attention_output import attention_output
from acct.losses.compilation import (
    CompilationWeights,
    attention,
    attention_teacher,
    behaviour,
    key_direction,
    key_scale,
    last_rows,
    slot_weights,
    value,
)
from acct.progress import Progress
from acct.selection import full_selection, gather_native, gather_source
from acct.supervision.continuation import with_continuation
from acct.training.frozen import FrozenBatch, move_native, without_cache
from acct.training.loop import Terms
from acct.training.modules import bridge_geometry, bridge_reads
from acct.training.parallel import Parallel
from acct.training.selections import FrozenSelections, batches_of
from acct.training.session import Examples, Session
from acct.types import NativeStates, Selection, SourceStates, SparseKV, TokenBatch

logger = logging.getLogger(__name__)


class CompilationTask:
    """The loss over batches of one list of examples.

    Args:
        cache_bytes: memory for frozen batches that come again.
    Attributes:
        bridge, residual: set before the first loss; the residual is trained in place. subspace: what the Bridge reads, set before its
            statistics; None for source vectors.
        behaves: whether L_beh is computed; behaviour_step: the step of training from which it is.
        epoch_steps: steps of an epoch, by which further questions take turns.
    """

    bridge: Bridge | None = None
    residual: Residual
    subspace: Subspace | None = None
    behaves: bool = True
    behaviour_step: int = 0
    epoch_steps: int = 1

    def __init__(self, session: Session, examples: Examples, selections: FrozenSelections, cache_bytes: float = 0):
        self.session, self.examples, self.selections = session, examples, selections
        self.settings = session.config.compiler
        names = asdict(CompilationWeights())
        self.weights = CompilationWeights(**{name: getattr(self.settings, name) for name in names})
        self._cache: dict[tuple[int, ...], FrozenBatch] = {}
        self._room = cache_bytes
        self._embedding: EmbeddingStatistics | None = None
        self.geometry = bridge_geometry(session.config, session.pair.geometry)
        self.reads = bridge_reads(session.config, session.pair.geometry)

    @property
    def _looks(self) -> bool:
        """Whether a term looks at attention."""
        return self.weights.attention > 0 or self.weights.attention_output > 0

    @property
    def _asks_behaviour(self) -> bool:
        return self.behaves and self.weights.behaviour > 0

    def total(self, terms: Mapping[str, Tensor]) -> Tensor:
        """The loss, without the behaviour term while it is left out."""
        return (self.weights if self.behaves else replace(self.weights, behaviour=0.0)).total(terms)

    def statistics(self, batches: Sequence[list[int]], label: str, embedding: EmbeddingStatistics | None = None) -> BridgeStatistics:
        """Sufficient statistics of the Bridge over these batches, float64; what is read on the way is kept while there is room.

        `embedding` is filled on the way, when it is given.

        Each process reads its shares; the parts are merged in the order of the processes.
        """
        parallel, seconds = self.session.parallel, self.session.config.runtime.progress_seconds
        found = self.new_statistics()
        self._embedding = embedding
        with Progress(label, sum(map(len, batches)), every=seconds, enabled=parallel.main) as display:
            for indices in batches:
                if mine := parallel.share(indices):
                    self._read(mine, found) if self._room <= 0 else self.frozen(mine, found)
                display.update(len(indices))
        self._embedding = None
        if embedding is not None:
            share_sums(embedding, parallel)
        return merged(found, parallel)

    def new_statistics(self) -> BridgeStatistics:
        """Empty sums of the Bridge that the configuration names."""
        return BridgeStatistics(self.geometry, self.session.device, self.reads, shared=self.settings.subspace_width > 0)

    @torch.no_grad()
    def fit_subspace(self, subspace: Subspace, batches: Sequence[list[int]], label: str) -> None:
        """Fit the subspace over the contexts of these batches and read it from then on."""
        parallel, seconds, settings = self.session.parallel, self.session.config.runtime.progress_seconds, self.settings
        found = SubspaceStatistics(subspace, self.session.pair.geometry, settings.subspace_stride)
        with Progress(label, sum(map(len, batches)), every=seconds, enabled=parallel.main) as display:
            for indices in batches:
                if mine := parallel.share(indices):
                    _, _, states, native = self._read(mine, None)
                    found.add(states, native)
                display.update(len(indices))
        share_sums(found, parallel)
        found.solve(settings.subspace_ridge)
        self.subspace = subspace

    @torch.no_grad()
    def readout(self, batches: Sequence[list[int]], label: str) -> ReadoutStatistics:
        """Sums of z and of what the Bridge leaves, for `acct.compiler.readout.start_readout`; Bridge and residual are set."""
        parallel, seconds, shape = self.session.parallel, self.session.config.runtime.progress_seconds, self.residual.shape
        found = ReadoutStatistics(shape.units, shape.width, shape.head_dim, self.session.device)
        with Progress(label, sum(map(len, batches)), every=seconds, enabled=parallel.main) as display:
            for indices in batches:
                if mine := parallel.share(indices):
                    frozen = self.frozen(mine)
                    native = (frozen.native_keys, frozen.native_values)
                    left = (native[0] - frozen.source_keys, native[1] - frozen.source_values)
                    z, row = self.residual.trunk(frozen.states, frozen.selection)
                    if row is not None:
                        found.add(z, row, frozen.groups, left, native, self.settings.epsilon)
                display.update(len(indices))
        share_sums(found, parallel)
        return found

    def frozen(self, indices: list[int], statistics: BridgeStatistics | None = None) -> FrozenBatch:
        """The batch's constants, from memory or computed; computed ones are added to `statistics`."""
        key = tuple(indices)
        kept = self._cache.pop(key, None)
        if kept is not None:
            self._room += kept.bytes()
        found = self.bridged(self.freeze(indices, statistics) if kept is None else kept)
        if self._asks_behaviour and found.teacher_logits is None:  # kept from before the term entered
            found = self.taught(found, indices)
        if found.bytes() <= self._room:
            self._room -= found.bytes()
            self._cache[key] = found
        return found

    @torch.no_grad()
    def bridged(self, frozen: FrozenBatch) -> FrozenBatch:
        """The batch with K^B and V^B in place of what the Bridge reads, once there is a Bridge."""
        if self.bridge is None or frozen.bridge is self.bridge:
            return frozen
        assert frozen.bridge is None, "another Bridge has mapped this batch"
        keys, values = self.bridge.mapped(frozen.source_keys, frozen.source_values, frozen.groups)
        return replace(frozen, source_keys=keys, source_values=values, bridge=self.bridge)

    @torch.no_grad()
    def _read(self, indices: list[int], statistics: BridgeStatistics | None) -> tuple[TokenBatch, Selection, SourceStates, NativeStates]:
        """Tokens, frozen selection, source states (as the Bridge reads them) and native states of a batch, on the interface's device."""
        pair, device, cache = self.session.pair, self.session.device, self.session.states
        batch, selection = self.examples.batch(indices), self.selections.of(indices, device)
        states = cache.context(pair.source, batch.context_ids, batch.context_lengths).to(device)
        states = states if self.subspace is None else self.subspace(states)
        batch, native = self._native(batch)
        if statistics is not None:
            statistics.add(states, selection, native)
        if self._embedding is not None:
            self._embedding.add(states, native)
        return batch, selection, states, native

    @torch.no_grad()
    def _native(self, batch: TokenBatch) -> tuple[TokenBatch, NativeStates]:
        """The batch, with the target's continuation where it is asked for, and its native states."""
        pair, device, cache = self.session.pair, self.session.device, self.session.states
        if not self.settings.continuation:
            return batch, move_native(cache.native(pair.target, batch, queries=self._looks), device)
        asked = self.session.config.supervision
        rows = cache.rows(pair.target, batch, asked.query_rows, asked.continuation_rows, stop_tokens(pair.target))
        batch, native = with_continuation(batch, rows)
        return batch, move_native(native, device)

    @torch.no_grad()
    def freeze(self, indices: list[int], statistics: BridgeStatistics | None = None) -> FrozenBatch:
        """The batch's constants, computed."""
        pair = self.session.pair
        batch, selection, states, native = self._read(indices, statistics)
        source_keys, source_values = gather_source(selection, states, self.geometry, self.reads)
        native_keys, native_values = gather_native(selection, native)
        totals = native.context_lengths + native.query_lengths
        teacher = None
        if self._looks:
            known = self.session.config.supervision.query_rows if self.settings.continuation else self.settings.attention_positions
            positions, reads = min(known, self.settings.attention_positions), self.weights.attention_output > 0
            teacher = attention_teacher(pair.target.rotate, native, selection, pair.target.scaling, positions, reads)
        frozen = FrozenBatch(
            selection, UnitGroups.of(selection), without_cache(states), source_keys, source_values, native_keys, native_values,
            totals, teacher, None, batch.query_ids, native.query_lengths,
        )  # fmt: skip
        return self.taught(frozen, indices, native) if self._asks_behaviour else frozen

    @torch.no_grad()
    def taught(self, frozen: FrozenBatch, indices: Sequence[int], native: NativeStates | None = None) -> FrozenBatch:
        """The batch with the logits that L_beh compares with: over native states at the selection, or over all of them.

        Args:
            native: of these examples, when they are at hand.
        """
        if self.settings.teacher == "kept":
            return replace(frozen, teacher_logits=self.query_logits(frozen, frozen.native_keys, frozen.native_values))
        if native is None:
            _, native = self._native(self.examples.batch(indices))
        target = self.session.pair.geometry.target
        everything = full_selection(native.context_lengths, target.layers, target.kv_heads)
        whole = replace(frozen, selection=everything)
        return replace(frozen, teacher_logits=self.query_logits(whole, *gather_native(everything, native)))

    def turned(self, frozen: FrozenBatch, indices: Sequence[int], epoch: int) -> FrozenBatch:
        """The batch with the questions whose turn it is, for L_beh; the terms that look at attention keep the examples' own.

        A question is followed by its answer, which nothing of the source reads. `totals` stay those of the examples' own questions, which
        matters under "dynamic" RoPE only.
        """
        asked = [self.examples.turn(index, epoch, self.settings.further_questions) for index in indices]
        if not any(asked) or not self._asks_behaviour:
            return frozen
        rows = zip(asked, frozen.query_ids.tolist(), frozen.query_lengths.tolist())
        ids, lengths = padded([own[:length] if other is None else other for other, own, length in rows])
        device = frozen.query_ids.device
        return self.taught(replace(frozen, query_ids=ids.to(device), query_lengths=lengths.to(device)), indices)

    def query_logits(self, frozen: FrozenBatch, keys: Tensor, values: Tensor) -> Tensor:
        """Logits at the last query positions with these states (pre-RoPE [slot, dim]) mounted: [batch, row, vocabulary]."""
        target = self.session.pair.target
        rotated = rotate_kv(target, SparseKV(frozen.selection, keys.to(target.dtype), values.to(target.dtype), False), frozen.totals)
        at, _ = last_rows(frozen.query_lengths, self.settings.behaviour_positions)
        with mounted(target, rotated) as cache:
            return extend(target, cache, frozen.query_ids, frozen.query_lengths, at=at).to(self.session.device)

    def terms(self, frozen: FrozenBatch, keys: Tensor, values: Tensor) -> dict[str, Tensor]:
        """Every term with a weight, for compiled pre-RoPE keys and values [slot, dim]."""
        selection, epsilon, slots, weights = frozen.selection, self.settings.epsilon, slot_weights(frozen.selection), self.weights
        found = {
            "key_direction": key_direction(keys, frozen.native_keys, selection, epsilon, slots),
            "key_scale": key_scale(keys, frozen.native_keys, selection, epsilon, slots),
            "value": value(values, frozen.native_values, selection, epsilon, slots),
        }
        if frozen.teacher_attention is not None:
            rotated = rotate_kv(self.session.pair.target, SparseKV(selection, keys, values, False), frozen.totals)
            if weights.attention > 0:
                found["attention"] = attention(rotated.keys, frozen.teacher_attention, selection)
            if weights.attention_output > 0:
                found["attention_output"] = attention_output(
                    rotated.keys, values, frozen.native_values, frozen.teacher_attention, selection, epsilon
                )
        if self._asks_behaviour and frozen.teacher_logits is not None:
            logits = self.query_logits(frozen, keys, values)
            rows = frozen.query_lengths.clamp(max=self.settings.behaviour_positions)
            found["behaviour"] = behaviour(logits, frozen.teacher_logits, rows, self.settings.behaviour_positions)
        return found

    def compiled(self, frozen: FrozenBatch, with_residual: bool = True) -> tuple[Tensor, Tensor]:
        """Compiled pre-RoPE keys and values [slot, dim], as `acct.compiler.compiler.Compiler` gives them."""
        frozen = self.bridged(frozen)
        keys, values = frozen.source_keys, frozen.source_values
        if not with_residual:
            return keys, values
        key_correction, value_correction = self.residual(frozen.states, frozen.selection, frozen.groups)
        return keys + key_correction, values + value_correction

    def __call__(self, indices: list[int], step: int) -> tuple[Tensor, Terms]:
        """Loss and terms of a batch, for `acct.training.loop.fit`."""
        self.behaves = step >= self.behaviour_step
        frozen = self.turned(self.frozen(indices), indices, step // self.epoch_steps)
        terms = self.terms(frozen, *self.compiled(frozen))
        return self.total(terms), {name: float(term.detach()) for name, term in terms.items()}

    @torch.no_grad()
    def measure(self, batch: int, with_residual: bool) -> Terms:
        """Mean terms over all examples."""
        totals: dict[str, float] = {}
        for indices in batches_of(len(self.examples), batch, self.examples.lengths()):
            frozen = self.frozen(indices)
            for name, term in self.terms(frozen, *self.compiled(frozen, with_residual)).items():
                totals[name] = totals.get(name, 0.0) + float(term) * len(indices) / len(self.examples)
        return totals


def merged(own: BridgeStatistics, parallel: Parallel) -> BridgeStatistics:
    """The statistics of all processes, the same in each."""
    if parallel.world == 1:
        return own
    names = [name for name, value in vars(own).items() if isinstance(value, Tensor)]
    every = {name: parallel.gather(getattr(own, name)) for name in names}
    total = BridgeStatistics(own.geometry, own.rows.device, own.reads, own.shared)
    for rank in range(parallel.world):
        part = BridgeStatistics(own.geometry, own.rows.device, own.reads, own.shared)
        for name in names:
            setattr(part, name, every[name][rank])
        total.merge(part)
    return total


def share_sums(own: EmbeddingStatistics | ReadoutStatistics | SubspaceStatistics, parallel: Parallel) -> None:
    """Make the statistics those of all processes, the same in each."""
    if parallel.world > 1:
        for name, value in own.sums().items():
            setattr(own, name, sum(parallel.gather(value)))


def prefixed(terms: Mapping[str, float], prefix: str) -> dict[str, float]:
    """The terms under names that say what they were measured on."""
    return {f"{prefix}_{name}": term for name, term in terms.items()}


def compiler_of(bridge: Bridge, residual: Residual | None, subspace: Subspace | None = None) -> Compiler:
    """A Compiler in eval mode."""
    return Compiler(bridge, residual, subspace=subspace).eval()
