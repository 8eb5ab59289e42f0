"""Frozen states that stages and epochs share, example by example: computed once, kept on disk under what they depend on (spec 1, 5).

The key of an entry is the SHA-256 of format, model fingerprint, model dtype, stored dtype, what was captured, and the token ids. Nothing
about the batch goes in, so batches may be regrouped; an entry is cut to its example's length and padded with zeros again. States computed
in a batch of other members differ by rounding: where all examples of a batch are missing they are read together, exactly as without a
cache, and where some are there only the others are read.

    source context    H_c, taps, K_S, V_S                        of the context's ids; `read_source` and `read_context` share it
    source query      H_q                                        of [c; q]
    source utility    what the source would miss                 of [c; q] and how many rows were looked at
    target history    keys before RoPE and values                of [c; q]; `read_native` and `attention_rows` share it
    target queries    q* before RoPE at the query positions; `read_native` and `attention_rows` share it, whatever `query_rows` is
    target further    the greedy continuation: its tokens, keys, values and queries
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from acct.models.adapter import ModelAdapter
from acct.models.batching import check_batch, check_lengths, last_query_places, mask_of
from acct.native import read_native
from acct.source import identity_of, read_context, read_query, read_source
from acct.state_store import FORMAT, StateStore
from acct.supervision.teacher import AttentionRows, attention_rows
from acct.types import NativeStates, SourceStates, TokenBatch

Entry = Mapping[str, Tensor]
_CONTEXT = ("context_hidden", "taps", "keys_pre", "values")


@dataclass(frozen=True)
class StateCache:
    """The readers of frozen models, with a memory.

    Attributes:
        store: where entries lie; None computes everything, as if there were no cache.
    """

    store: StateStore | None = None

    def source(self, adapter: ModelAdapter, batch: TokenBatch, utility_rows: int = 0) -> SourceStates:
        """`read_source`."""
        if self.store is None:
            return read_source(adapter, batch, utility_rows)
        check_batch(batch)
        rows = _rows(batch)

        def compute(missing: list[int]) -> list[dict[str, Entry]]:
            part = take(batch, missing)
            if utility_rows and self._contexts_stored(adapter, [rows[i][0] for i in missing]):  # the query's tokens are all that is new
                states = self.context(adapter, part.context_ids, part.context_lengths)
                states = read_query(adapter, states, part.query_ids, part.query_lengths, utility_rows)
            else:
                states = read_source(adapter, part, utility_rows)
            assert states.query_hidden is not None
            entries: list[dict[str, Entry]] = [{"source context": one} for one in _contexts(states)]
            for row, i in enumerate(missing):
                entries[row]["source query"] = {"query_hidden": _cut(states.query_hidden, row, len(rows[i][1]))}
                if states.query_utilities is not None:
                    entries[row]["source utility"] = {"utilities": states.query_utilities[row, :, : len(rows[i][0])]}
            return entries

        found = self._entries(adapter, self._source_plan(adapter, rows, utility_rows), compute)
        states = _source_states(adapter, [entry["source context"] for entry in found], batch.context_ids, batch.context_lengths)
        query = _joined([entry["source query"]["query_hidden"] for entry in found], batch.query_ids.shape[1], adapter)
        utilities = None
        if utility_rows:
            width = batch.context_ids.shape[1]
            cut = [entry["source utility"]["utilities"].float() for entry in found]
            utilities = torch.stack([F.pad(one, (0, width - one.shape[-1])) for one in cut]).to(adapter.device)
        lengths = batch.query_lengths.to(adapter.device)
        return replace(states, query_hidden=query, query_lengths=lengths, query_utilities=utilities)

    def context(self, adapter: ModelAdapter, context_ids: Tensor, context_lengths: Tensor) -> SourceStates:
        """`read_context`."""
        if self.store is None:
            return read_context(adapter, context_ids, context_lengths)
        check_lengths("context", context_ids, context_lengths)
        rows = [ids[:n] for ids, n in zip(context_ids.tolist(), context_lengths.tolist())]

        def compute(missing: list[int]) -> list[dict[str, Entry]]:
            lengths = context_lengths[missing]
            states = read_context(adapter, context_ids[missing, : int(lengths.max())], lengths)
            return [{"source context": entry} for entry in _contexts(states)]

        found = self._entries(adapter, [{"source context": self._context_key(adapter, row, len(row))} for row in rows], compute)
        return _source_states(adapter, [entry["source context"] for entry in found], context_ids, context_lengths)

    def native(self, adapter: ModelAdapter, batch: TokenBatch, queries: bool = False) -> NativeStates:
        """`read_native` without logits."""
        if self.store is None:
            return read_native(adapter, batch, queries)
        check_batch(batch)
        rows, layers = _rows(batch), adapter.geometry.layers

        def compute(missing: list[int]) -> list[dict[str, Entry]]:
            native = read_native(adapter, take(batch, missing), queries)
            found: list[dict[str, Entry]] = []
            for row, i in enumerate(missing):
                n, q = len(rows[i][0]), len(rows[i][1])
                pairs = {name: (getattr(native, f"context_{name}"), getattr(native, f"query_{name}")) for name in ("keys_pre", "values")}
                history = {name: torch.cat((_cut(c, row, n), _cut(u, row, q)), dim=-2) for name, (c, u) in pairs.items()}
                entry: dict[str, Entry] = {"target history": {name: t.unflatten(0, (layers, -1)) for name, t in history.items()}}
                if native.queries_pre is not None:
                    entry["target queries"] = {"queries_pre": _cut(native.queries_pre, row, q)}
                found.append(entry)
            return found

        plan: list[dict[str, Any]] = [{"target history": c + q} | ({"target queries": [c, q]} if queries else {}) for c, q in rows]
        found = self._entries(adapter, plan, compute)
        context_width, query_width = batch.context_ids.shape[1], batch.query_ids.shape[1]
        histories = [{name: tensor.flatten(0, 1) for name, tensor in entry["target history"].items()} for entry in found]

        def parts(name: str) -> tuple[Tensor, Tensor]:
            tensors, sizes = [history[name] for history in histories], [len(c) for c, _ in rows]
            context = _joined([tensor[..., :n, :] for tensor, n in zip(tensors, sizes)], context_width, adapter)
            return context, _joined([tensor[..., n:, :] for tensor, n in zip(tensors, sizes)], query_width, adapter)

        (context_keys, query_keys), (context_values, query_values) = parts("keys_pre"), parts("values")
        return NativeStates(
            context_lengths=batch.context_lengths.to(adapter.device),
            query_lengths=batch.query_lengths.to(adapter.device),
            context_keys_pre=context_keys,
            context_values=context_values,
            query_keys_pre=query_keys,
            query_values=query_values,
            queries_pre=_joined([e["target queries"]["queries_pre"] for e in found], query_width, adapter) if queries else None,
        )

    def rows(
        self, adapter: ModelAdapter, batch: TokenBatch, query_rows: int = 8, continuation_rows: int = 8, stop_ids: Sequence[int] = ()
    ) -> AttentionRows:
        """`attention_rows`."""
        if self.store is None:
            return attention_rows(adapter, batch, query_rows, continuation_rows, stop_ids)
        rows = _rows(batch)

        def compute(missing: list[int]) -> list[dict[str, Entry]]:
            longest = max(len(rows[i][1]) for i in missing)
            found = attention_rows(adapter, take(batch, missing), longest, continuation_rows, stop_ids)
            return [_row_entries(found, row, longest, *map(len, rows[i])) for row, i in enumerate(missing)]

        found = self._entries(adapter, _rows_plan(rows, continuation_rows, stop_ids), compute)
        return _attention_rows(adapter, batch, found, query_rows)

    def absent(
        self, source: ModelAdapter, target: ModelAdapter, batch: TokenBatch, continuation_rows: int, stop_ids: Sequence[int],
        utility_rows: int = 0,
    ) -> list[int]:  # fmt: skip
        """Examples of a batch for which `source` or `rows` would run a model; files are looked for, not read."""
        if self.store is None:
            return list(range(batch.batch))
        rows, store = _rows(batch), self.store
        plans = ((source, self._source_plan(source, rows, utility_rows)), (target, _rows_plan(rows, continuation_rows, stop_ids)))
        keys = [[self._key(adapter, kind, what) for adapter, plan in plans for kind, what in plan[row].items()] for row in range(len(rows))]
        return [row for row, wanted in enumerate(keys) if not all(map(store.holds, wanted))]

    def _contexts_stored(self, adapter: ModelAdapter, contexts: Sequence[list[int]]) -> bool:
        assert self.store is not None
        if adapter.rotary.kind == "dynamic":  # states of a context then depend on what follows it
            return False
        keys = (self._key(adapter, "source context", self._context_key(adapter, ids, len(ids))) for ids in contexts)
        return all(map(self.store.holds, keys))

    def _source_plan(self, adapter: ModelAdapter, rows: Sequence[tuple[list[int], list[int]]], utility_rows: int) -> list[dict[str, Any]]:
        """What the entries of `source` depend on."""
        plan = [{"source context": self._context_key(adapter, c, len(c) + len(q)), "source query": [c, q]} for c, q in rows]
        further = [{"source utility": [c, q, utility_rows]} if utility_rows else {} for c, q in rows]
        return [one | two for one, two in zip(plan, further)]

    def _entries(
        self, adapter: ModelAdapter, plan: list[dict[str, Any]], compute: Callable[[list[int]], list[dict[str, Entry]]]
    ) -> list[dict[str, Entry]]:
        """For every example the entries of its plan (kind -> what it depends on beside the model), read or computed and stored."""
        store = self.store
        assert store is not None
        keys = [{kind: self._key(adapter, kind, what) for kind, what in wanted.items()} for wanted in plan]
        found = [{kind: store.get(key) for kind, key in one.items()} for one in keys]
        missing = [row for row, entries in enumerate(found) if None in entries.values()]
        for row, fresh in zip(missing, compute(missing) if missing else ()):
            for kind, key in keys[row].items():
                if found[row][kind] is None:
                    found[row][kind] = store.put(key, fresh[kind])
        return found  # type: ignore[return-value]

    def _key(self, adapter: ModelAdapter, kind: str, what: Any) -> str:
        assert self.store is not None
        parts = [FORMAT, adapter.fingerprint, str(adapter.dtype), str(self.store.dtype), kind, what]
        return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()

    @staticmethod
    def _context_key(adapter: ModelAdapter, ids: list[int], total: int) -> list[Any]:
        """What context states depend on: the ids, and under "dynamic" RoPE the length of the whole sequence."""
        return [ids, total if adapter.rotary.kind == "dynamic" else None]


def take(batch: TokenBatch, rows: Sequence[int]) -> TokenBatch:
    """Some examples of a batch, no wider than they are; all of them is the batch itself."""
    if len(rows) == batch.batch:
        return batch
    n, q = batch.context_lengths[list(rows)], batch.query_lengths[list(rows)]
    return TokenBatch(batch.context_ids[list(rows), : int(n.max())], n, batch.query_ids[list(rows), : int(q.max())], q)


def _rows(batch: TokenBatch) -> list[tuple[list[int], list[int]]]:
    """Context and query ids of every example, without padding."""
    columns = (batch.context_ids, batch.context_lengths, batch.query_ids, batch.query_lengths)
    return [(c[:n], q[:m]) for c, n, q, m in zip(*(column.tolist() for column in columns))]


def _rows_plan(rows: Sequence[tuple[list[int], list[int]]], continuation_rows: int, stop_ids: Sequence[int]) -> list[dict[str, Any]]:
    """What the entries of `StateCache.rows` depend on."""
    asked = [continuation_rows, sorted(stop_ids)]
    return [{"target history": c + q, "target queries": [c, q], "target further": [c + q, *asked]} for c, q in rows]


def _cut(states: Tensor, row: int, length: int) -> Tensor:
    """The first positions of one example: [batch, ..., width, dim] -> [..., length, dim]."""
    return states[row, ..., :length, :]


def _joined(states: Sequence[Tensor], width: int, adapter: ModelAdapter) -> Tensor:
    """Examples [..., length, dim] as one batch [batch, ..., width, dim] of the model's dtype, zero at padding, on its device."""
    padded = [F.pad(tensor.to(adapter.dtype), (0, 0, 0, width - tensor.shape[-2])) for tensor in states]
    return torch.stack(padded).to(adapter.device)


def _contexts(states: SourceStates) -> list[Entry]:
    lengths = states.context_lengths.tolist()
    return [{name: _cut(getattr(states, name), row, n) for name in _CONTEXT} for row, n in enumerate(lengths)]


def _source_states(adapter: ModelAdapter, entries: Sequence[Entry], context_ids: Tensor, context_lengths: Tensor) -> SourceStates:
    """A batch of context states, as `read_context` gives it."""
    ids, lengths = context_ids.to(adapter.device), context_lengths.to(adapter.device)
    width = ids.shape[1]
    return SourceStates(
        context_ids=ids.masked_fill(~mask_of(lengths, width), 0),
        context_lengths=lengths,
        identity=identity_of(adapter, ids, lengths),
        **{name: _joined([entry[name] for entry in entries], width, adapter) for name in _CONTEXT},
    )


def _row_entries(found: AttentionRows, row: int, asked: int, context: int, query: int) -> dict[str, Entry]:
    """One example's history, queries and continuation, cut out of a batch that was asked for `asked` >= query positions."""
    tokens = found.continuations[row]
    total = context + query
    end = total + len(tokens)
    keys, values, queries = _cut(found.keys_pre, row, end), _cut(found.values, row, end), found.queries_pre[row]
    history = {"keys_pre": keys[..., :total, :], "values": values[..., :total, :]}
    rest = {"keys_pre": keys[..., total:, :], "values": values[..., total:, :]}
    rest |= {"queries_pre": queries[..., asked : asked + len(tokens), :], "tokens": torch.tensor(tokens, dtype=torch.int64)}
    return {"target history": history, "target queries": {"queries_pre": queries[..., asked - query : asked, :]}, "target further": rest}


def _attention_rows(adapter: ModelAdapter, batch: TokenBatch, entries: Sequence[Mapping[str, Any]], query_rows: int) -> AttentionRows:
    """A batch of histories with their continuations, as `attention_rows` gives it; rows that are not there are zero and not valid."""
    device = adapter.device
    totals = (batch.context_lengths + batch.query_lengths).to(device)
    further = [entry["target further"] for entry in entries]
    tokens = [one["tokens"].tolist() for one in further]
    counts = torch.tensor([len(one) for one in tokens], device=device)
    lengths = totals + counts
    width, steps = int(lengths.max()), int(counts.max())
    whole = [
        [torch.cat((e["target history"][name], e["target further"][name]), dim=-2) for e in entries] for name in ("keys_pre", "values")
    ]
    last = [entry["target queries"]["queries_pre"][..., -query_rows:, :] for entry in entries]
    queries = [
        F.pad(torch.cat((one, two["queries_pre"]), dim=-2), (0, 0, query_rows - one.shape[-2], 0)) for one, two in zip(last, further)
    ]
    asked, there = last_query_places(batch.context_lengths.to(device), batch.query_lengths.to(device), query_rows)
    step = torch.arange(steps, device=device)
    return AttentionRows(
        _joined(whole[0], width, adapter),
        _joined(whole[1], width, adapter),
        _joined(queries, query_rows + steps, adapter),
        torch.cat((asked, torch.minimum(totals[:, None] + step, lengths[:, None])), dim=1).clamp(max=width - 1),
        torch.cat((there, step < counts[:, None]), dim=1),
        lengths,
        tokens,
    )
