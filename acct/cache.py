"""Mount a context in the frozen target for the length of a `with` block, and run tokens after it (spec 4, Mount).

Inside `mounted(...)` the target attends to the mounted slots and to its own native history in one softmax. A row whose context has N
tokens, of which fewer are stored, continues at position N: positions are logical, the number of stored slots is not. Rows may
differ in N, in slots for every unit, and in how many native tokens they hold; native padding stays masked for ever.

    with mounted(target, kv) as cache:
        logits = extend(target, cache, query_ids, query_lengths)

The packed tensors are stored once, as views of what was given; padding exists inside one attention call only. Gradients reach the
mounted keys, values and gates. Several mounts, of one model or of two, may be open at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from acct.attention import IMPLEMENTATION, TAG, register_attention
from acct.errors import InputError, InterfaceError
from acct.models import compat
from acct.models.adapter import ModelAdapter
from acct.mounted_context import MountedContext, NativeHistory, NoContext, SlotIndex, gated_contexts, packed_contexts
from acct.types import GatedKV, SparseKV


class MountedLayer(DynamicLayer):
    """One layer: its mounted context, and the native keys and values [batch, head, native, dim] appended so far."""

    def __init__(self, context: MountedContext, history: NativeHistory, keys: Tensor, values: Tensor):
        super().__init__()
        self.context, self.history = context, history
        self.keys, self.values = keys, values
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    @property
    def native(self) -> int:
        """Native tokens in the storage, padding included."""
        return self.keys.shape[-2]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append natively; the returned keys carry a tag that leads the attention function back to this layer."""
        if self.native:
            key_states = torch.cat([self.keys, key_states], dim=-2)
            value_states = torch.cat([self.values, value_states], dim=-2)
        self.keys, self.values = key_states, value_states
        tagged = self.keys.view_as(self.keys)  # a fresh tensor object on the same storage
        setattr(tagged, TAG, self)
        return tagged, self.values

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
        """Attention of the newest tokens over the context and the native history: [batch, query_head, query, dim]."""
        return self.context.attend(query, keys, values, self.history, scaling)

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        raise InterfaceError(
            f"a mounted cache was run with another attention function than {IMPLEMENTATION!r}, which would ignore the context. "
            "Use it inside its `with mounted(...)` block."
        )


@dataclass(frozen=True)
class Mark:
    """A point of a cache's native history to come back to; holds references, no copies."""

    owner: int
    states: tuple[tuple[Tensor, Tensor], ...]
    valid: Tensor
    lengths: Tensor


class MountedCache(Cache):
    """Cache of a target with a mounted context; built by `mounted`, run by `extend` or by transformers' own loops.

    Attributes:
        context_lengths: int64 [batch], N, the position of each row's first native token.
        history: which native tokens are real.
    """

    def __init__(self, contexts: Sequence[MountedContext], context_lengths: Tensor, history: NativeHistory, states: Sequence[tuple]):
        super().__init__(layers=[MountedLayer(context, history, *state) for context, state in zip(contexts, states)])
        self.context_lengths = context_lengths
        self.history = history
        self._extending = False

    @property
    def batch(self) -> int:
        return len(self.context_lengths)

    @property
    def native_lengths(self) -> Tensor:
        """int64 [batch], real native tokens appended so far."""
        return self.history.lengths

    @property
    def native_width(self) -> int:
        """Native tokens in the storage of every row, padding included."""
        return self.history.valid.shape[1]

    def mounted_bytes(self) -> int:
        """Bytes that the stored context states hold (keys, values, gates where mounted): whole storages, each once; the index apart."""
        storages = (tensor.untyped_storage() for layer in self.layers for tensor in layer.context.stored())
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def index_bytes(self) -> int:
        """Bytes of the integers that say where packed slots lie; layers with equal counts share them."""
        indices = {id(index): index for index in (layer.context.index() for layer in self.layers) if index is not None}
        return sum(index.bytes() for index in indices.values())

    # ---- the history ----

    @contextmanager
    def appending(self, lengths: Tensor, width: int) -> Iterator[None]:
        """One step that appends `width` tokens, `lengths[row]` of them real. An error inside leaves the cache as it was."""
        mark, before = self.mark(), self.native_width
        self.history.begin(lengths, width)
        self._extending = True
        try:
            yield
            short = [i for i, layer in enumerate(self.layers) if layer.native != before + width]
            if short:
                raise InterfaceError(
                    f"layer {short[0]} of the target holds {self.layers[short[0]].native} native tokens after a step that should give "
                    f"{before + width}: the model ran without the mounted cache. Switch gradient checkpointing off on the target."
                )
        except BaseException:
            self.rewind(mark)
            raise
        finally:
            self._extending = False
            self.history.end()

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if layer_idx == 0 and not self._extending:  # transformers' own loop: every new token is real
            width = key_states.shape[-2]
            self.history.begin(torch.full_like(self.context_lengths, width), width)
        return self.layers[layer_idx].update(key_states, value_states)

    def mark(self) -> Mark:
        """Remember the native history, for `rewind`."""
        return Mark(id(self.history), tuple((layer.keys, layer.values) for layer in self.layers), self.history.valid, self.history.lengths)

    def rewind(self, mark: Mark) -> None:
        """Forget every native token appended after `mark`.

        Raises:
            InputError: the mark was taken on another cache, or before its rows were changed.
        """
        if mark.owner != id(self.history):
            raise InputError("a mark of another cache, or of this one before its rows were reordered, cannot rewind it. Mark it again.")
        for layer, (keys, values) in zip(self.layers, mark.states):
            layer.keys, layer.values = keys, values
        self.history.restore(mark.valid, mark.lengths)

    # ---- rows ----

    def take(self, rows: Tensor | Sequence[int]) -> MountedCache:
        """The examples `rows` (any order, repeats allowed) as a cache of its own; packed context states are shared, not copied."""
        rows = torch.as_tensor(rows, dtype=torch.int64, device=self.context_lengths.device)
        indices: dict[int, SlotIndex] = {}
        contexts = [layer.context.take(rows.to(layer.keys.device), indices) for layer in self.layers]
        history = NativeHistory(self.history.valid[rows], self.history.lengths[rows])
        states = [tuple(part[rows.to(part.device)] for part in (layer.keys, layer.values)) for layer in self.layers]
        return MountedCache(contexts, self.context_lengths[rows], history, states)

    def repeat(self, repeats: int | Sequence[int]) -> MountedCache:
        """Every row `repeats` times (or repeats[row] times, 0 leaves it out), copies side by side; this cache stays as it is."""
        counts = [repeats] * self.batch if isinstance(repeats, int) else list(repeats)
        if len(counts) != self.batch:
            raise InputError(f"repeat got {len(counts)} counts for a cache of {self.batch} rows. Give one for each row.")
        return self.take([row for row, count in enumerate(counts) for _ in range(count)])

    def _become(self, other: MountedCache) -> None:
        self.layers, self.context_lengths, self.history = other.layers, other.context_lengths, other.history

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._become(self.repeat(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._become(self.take(indices))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._become(self.take(beam_idx))

    def crop(self, max_length: int) -> None:
        raise InterfaceError("a mounted cache is not cropped by length. Use mark() before and rewind(mark) after.")

    def reset(self) -> None:
        raise InterfaceError("a mounted cache is not reset in place. Mount the context again, or use mark() and rewind(mark).")

    # ---- what transformers asks ----

    def next_positions(self, width: int) -> Tensor:
        """Positions of the next `width` tokens of each row, N + native, N + native + 1, ...: int64 [batch, width]."""
        first = self.context_lengths + self.history.lengths
        return first[:, None] + torch.arange(width, device=first.device)

    def get_seq_length(self, layer_idx: int = 0, *args: Any, **kwargs: Any) -> int:
        """The logical length N + native that positions of a plain call are derived from; one number, so rows must agree."""
        if self._extending:  # positions are given, nothing is derived from this number
            return self.native_width
        lengths = self.context_lengths + self.history.lengths
        longest = int(lengths.max()) if len(lengths) else 0
        if bool((lengths != longest).any()) or not bool(self.history.valid.all()):
            raise InterfaceError(
                f"rows of this mounted cache end at {lengths.tolist()} tokens; a plain call would give them one position. Use `extend`."
            )
        return longest

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self.layers[0].get_mask_sizes()

    def get_max_cache_shape(self, *args: Any, **kwargs: Any) -> int:
        return -1

    def get_max_length(self, *args: Any, **kwargs: Any) -> int:
        return -1


def build_cache(adapter: ModelAdapter, context: SparseKV | GatedKV | None, batch: int | None = None) -> MountedCache:
    """A cache over `context` for the target; it needs `mounted`'s attention function to run."""
    geometry, device, dtype, places = adapter.geometry, adapter.device, adapter.dtype, adapter.layer_devices
    layers, heads, dim = geometry.layers, geometry.kv_heads, geometry.head_dim
    contexts: list[MountedContext]
    if context is None:
        if batch is None:
            raise InputError("mounting nothing needs the number of rows: give `batch`.")
        contexts, lengths = [NoContext()] * layers, torch.zeros(batch, dtype=torch.int64)
    else:
        _check(context, layers, heads, dim, batch)
        lengths = context.selection.context_lengths if isinstance(context, SparseKV) else context.context_lengths
        contexts = packed_contexts(context, dtype, places) if isinstance(context, SparseKV) else gated_contexts(context, dtype, places)
    lengths = lengths.to(device=device, dtype=torch.int64)
    history = NativeHistory(torch.zeros(len(lengths), 0, dtype=torch.bool, device=device), torch.zeros_like(lengths))
    empty = {place: torch.zeros(len(lengths), heads, 0, dim, dtype=dtype, device=place) for place in set(places)}
    return MountedCache(contexts, lengths, history, [(empty[place], empty[place]) for place in places])


def _check(context: SparseKV | GatedKV, layers: int, heads: int, dim: int, batch: int | None) -> None:
    """Raises InputError naming what of `context` does not fit the target."""
    if isinstance(context, SparseKV):
        selection = context.selection
        shape, rows, units = (selection.layers, selection.heads), selection.batch, (layers, heads)
        slots = len(selection.positions)
        if not context.rotated:
            raise InputError("a SparseKV with keys before RoPE cannot be mounted. Rotate it first (`rotate_kv`).")
        if context.keys.shape != context.values.shape or tuple(context.keys.shape) != (slots, dim):
            got = f"{tuple(context.keys.shape)} and {tuple(context.values.shape)}"
            raise InputError(f"mounted keys and values must be [{slots}, {dim}] [slot, dim] for this selection and target, got {got}.")
    else:
        shape, rows, units = (context.hard.shape[1],), context.hard.shape[0], (layers * heads,)
        expected = (*context.hard.shape, dim)
        got = (tuple(context.keys.shape), tuple(context.values.shape), (*context.log_gates.shape, dim))
        if got != (expected, expected, expected):
            raise InputError(f"gated keys, values and gates must be {expected} [batch, unit, context, dim] (gates without dim), got {got}.")
    if shape != units:
        raise InputError(f"the context is made for units {shape}; the target has {units}. Mount it in the target it was made for.")
    if batch is not None and rows != batch:
        raise InputError(f"the context holds {rows} examples, the batch {batch}. Mount the context of the same batch.")


@contextmanager
def mounted(adapter: ModelAdapter, context: SparseKV | GatedKV | None, batch: int | None = None) -> Iterator[MountedCache]:
    """Mount a context in the target for the length of the block.

    Args:
        adapter: the frozen target.
        context: packed states with rotated keys; or native states under gates; or None, nothing mounted: plain causal runs at the
            speed of the stock attention (Target Full with a query of [c; q], no context).
        batch: rows; needed for None, otherwise checked.
    Yields:
        An empty MountedCache over the context. The model's attention function is switched inside the block and restored after it.
    Raises:
        InputError: keys that are not rotated, or shapes that do not fit the target or the batch.
    """
    cache = build_cache(adapter, context, batch)
    register_attention()
    with compat.stock_attention(adapter.model, IMPLEMENTATION):
        yield cache


def extend(
    adapter: ModelAdapter,
    cache: MountedCache,
    ids: Tensor,
    lengths: Tensor,
    positions: Tensor | None = None,
    at: Tensor | None = None,
) -> Tensor:
    """Run tokens after the mounted context and what was appended before, and append them.

    Args:
        ids: int64 [batch, query], right-padded. lengths: int64 [batch], real tokens of each row, 0 allowed.
        positions: int64 [batch, query], None for N + native of each row and on: never shared between rows.
        at: int64 [batch, asked], query indices whose logits are wanted; None for all.
    Returns:
        logits [batch, query or asked, vocabulary], finite and without meaning at padding; differentiable in the mounted states.
    Raises:
        InputError: shapes that do not fit the cache. InterfaceError: outside the `mounted` block, or the model dropped the cache.
    """
    if ids.shape[0] != cache.batch or len(lengths) != cache.batch:
        raise InputError(f"{ids.shape[0]} rows of ids and {len(lengths)} lengths do not fit a cache of {cache.batch} rows.")
    if adapter.model.config._attn_implementation != IMPLEMENTATION:
        raise InterfaceError("the target is not switched to mounted attention. Call extend inside the `with mounted(...)` block.")
    device, width = adapter.device, ids.shape[1]
    adapter.check_ids(ids)
    ids, lengths = ids.to(device), lengths.to(device=device, dtype=torch.int64)
    positions = cache.next_positions(width) if positions is None else positions.to(device)
    totals = positions[:, 0] + lengths
    decoder = adapter.parts.decoder
    arguments: dict[str, Any] = {compat.cache_argument(decoder): cache}
    with cache.appending(lengths, width), adapter.rotary.lengths(totals):
        hidden = decoder(input_ids=ids, position_ids=positions, use_cache=True, **arguments).last_hidden_state
    if at is not None:
        hidden = hidden.gather(1, at.to(hidden.device)[..., None].expand(-1, -1, hidden.shape[-1]))
    return adapter.logits_of(hidden)
