"""How the context of one target layer is stored while it is mounted: nothing, packed slots, or all positions under gates.

Packed storage holds every selected key and value once, [slot, dim], whatever the units' counts (ragged by layer, example and head).
For the length of one attention call the slots are placed in a padded buffer beside the native history; padding there is zero and masked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from acct.attention import causal_attention, gated_attention, joint_attention, joint_mask, native_mask
from acct.selection import padded_index, row_counts
from acct.types import GatedKV, Selection, SparseKV


class _Join(torch.autograd.Function):
    """Packed slots and the native history in one padded buffer, by one copy of each; the gradient goes back by slices and gathers."""

    @staticmethod
    def forward(ctx, packed: Tensor, native: Tensor, place: Tensor, slots: int) -> Tensor:  # type: ignore[no-untyped-def]
        batch, heads, length, dim = native.shape
        joined = native.new_empty(batch, heads, slots + length, dim)
        joined[:, :, :slots] = 0
        joined.view(-1, dim).index_copy_(0, place, packed)
        joined[:, :, slots:] = native
        ctx.save_for_backward(place)
        ctx.slots = slots
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # type: ignore[no-untyped-def]
        (place,) = ctx.saved_tensors
        packed = grad.reshape(-1, grad.shape[-1]).index_select(0, place) if ctx.needs_input_grad[0] else None
        native = grad[:, :, ctx.slots :] if ctx.needs_input_grad[1] else None
        return packed, native, None, None


def join(packed: Tensor, native: Tensor, place: Tensor, slots: int) -> Tensor:
    """[slot, dim] and [batch, head, native, dim] -> [batch, head, slots + native, dim], zero where no slot lies.

    Args:
        place: int64 [slot], row * (slots + native) + column of each slot, row = batch * heads + head.
    """
    return _Join.apply(packed, native, place, slots)


@dataclass(frozen=True)
class SlotIndex:
    """Where packed slots lie when heads are padded to `slots`; layers with equal counts share one.

    Attributes:
        valid: bool [batch, head, slots]. place: int64 [slot], flat index into [batch * head * slots].
        source: int64 [slot], which stored slot is placed there, or None for all of them in order (repeated examples share storage).
    """

    valid: Tensor
    place: Tensor
    source: Tensor | None = None

    @classmethod
    def of(cls, valid: Tensor, stored: Tensor) -> SlotIndex:
        """From a padded index: `stored` int64 [batch, head, slots], read where `valid`."""
        return cls(valid, valid.flatten().nonzero().flatten(), stored[valid])

    @property
    def slots(self) -> int:
        return self.valid.shape[-1]

    def take(self, rows: Tensor) -> SlotIndex:
        """The index of the examples `rows` (any order, repeats allowed) into the same storage."""
        stored = torch.zeros(self.valid.shape, dtype=torch.int64, device=self.valid.device)
        stored[self.valid] = torch.arange(len(self.place), device=stored.device) if self.source is None else self.source
        return SlotIndex.of(self.valid[rows], stored[rows])

    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.valid, self.place, self.source) if tensor is not None)


class NativeHistory:
    """Which native tokens (query and generated) are real, shared by the layers of one cache.

    Attributes:
        valid: bool [batch, native], False at padding for ever. lengths: int64 [batch], real native tokens.
        queries: width of the step that is being run, None between steps.
    """

    def __init__(self, valid: Tensor, lengths: Tensor):
        self.valid, self.lengths = valid, lengths
        self.queries: int | None = None
        self._native_allowed: dict[torch.device, Tensor] = {}
        self._joint: dict[int, Tensor] = {}

    def begin(self, lengths: Tensor, width: int) -> None:
        """Append `width` tokens, the first `lengths[row]` of each row real; masks of this step are built when first asked for."""
        new = torch.arange(width, device=self.valid.device) < lengths[:, None]
        self.valid = torch.cat([self.valid, new], dim=1)
        self.lengths = self.lengths + lengths
        self.end()
        self.queries = width

    def end(self) -> None:
        """The step is over: forget its masks."""
        self.queries, self._native_allowed, self._joint = None, {}, {}

    def restore(self, valid: Tensor, lengths: Tensor) -> None:
        """Go back to an earlier history."""
        self.valid, self.lengths = valid, lengths
        self.end()

    @property
    def first_step(self) -> bool:
        """Whether every native token belongs to this step, so that right padding needs no mask beyond causality."""
        return self.queries == self.valid.shape[1]

    def native_allowed(self, device: torch.device) -> Tensor:
        """bool [batch, query, native], built once for all layers of a step that lie on a device."""
        assert self.queries is not None
        known = self._native_allowed.get(device)
        if known is None:
            known = self._native_allowed[device] = native_mask(self.valid.to(device), self.queries)
        return known

    def joint_mask(self, context_valid: Tensor) -> Tensor:
        """bool [batch, head, query, S + native], built once for the layers that share `context_valid`."""
        known = self._joint.get(id(context_valid))
        if known is None:
            known = self._joint[id(context_valid)] = joint_mask(context_valid, self.native_allowed(context_valid.device))
        return known


class MountedContext(ABC):
    """The mounted context of one layer."""

    @abstractmethod
    def attend(self, query: Tensor, keys: Tensor, values: Tensor, history: NativeHistory, scaling: float | None) -> Tensor:
        """Attention of query [batch, query_head, query, dim] over this context and native keys and values [batch, head, native, dim]."""

    @abstractmethod
    def take(self, rows: Tensor, indices: dict[int, SlotIndex]) -> MountedContext:
        """The examples `rows`, int64; `indices` remembers slot indices that layers share."""

    @abstractmethod
    def stored(self) -> tuple[Tensor, ...]:
        """The key and value tensors that this layer holds."""

    @abstractmethod
    def index(self) -> SlotIndex | None:
        """The slot index of packed storage."""


class NoContext(MountedContext):
    """Nothing mounted: plain causal attention over the native history."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, history: NativeHistory, scaling: float | None) -> Tensor:
        if history.first_step:
            return causal_attention(query, keys, values, scaling)
        allowed = history.native_allowed(keys.device)[:, None].expand(-1, keys.shape[1], -1, -1)
        return joint_attention(query, keys, values, allowed, scaling)

    def take(self, rows: Tensor, indices: dict[int, SlotIndex]) -> NoContext:
        return self

    def stored(self) -> tuple[Tensor, ...]:
        return ()

    def index(self) -> SlotIndex | None:
        return None


@dataclass(frozen=True)
class PackedContext(MountedContext):
    """Ragged slots of one layer: keys (post-RoPE) and values [slot, dim]."""

    keys: Tensor
    values: Tensor
    slot_index: SlotIndex

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, history: NativeHistory, scaling: float | None) -> Tensor:
        index, native = self.slot_index, keys.shape[2]
        place = index.place + index.place // max(index.slots, 1) * native
        packed_keys = self.keys if index.source is None else self.keys[index.source]
        packed_values = self.values if index.source is None else self.values[index.source]
        joined_keys = join(packed_keys, keys, place, index.slots)
        joined_values = join(packed_values, values, place, index.slots)
        return joint_attention(query, joined_keys, joined_values, history.joint_mask(index.valid), scaling)

    def take(self, rows: Tensor, indices: dict[int, SlotIndex]) -> PackedContext:
        taken = indices.get(id(self.slot_index))
        if taken is None:
            taken = indices[id(self.slot_index)] = self.slot_index.take(rows)
        return PackedContext(self.keys, self.values, taken)

    def stored(self) -> tuple[Tensor, ...]:
        return (self.keys, self.values)

    def index(self) -> SlotIndex | None:
        return self.slot_index


@dataclass(frozen=True)
class GatedContext(MountedContext):
    """All positions of one layer under gates: keys, values [batch, head, context, dim]; hard bool and log_gates [batch, head, context]."""

    keys: Tensor
    values: Tensor
    hard: Tensor
    log_gates: Tensor

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, history: NativeHistory, scaling: float | None) -> Tensor:
        joined_keys = torch.cat([self.keys, keys], dim=2)
        joined_values = torch.cat([self.values, values], dim=2)
        allowed = history.native_allowed(keys.device)
        return gated_attention(query, joined_keys, joined_values, self.hard, self.log_gates, allowed, scaling)

    def take(self, rows: Tensor, indices: dict[int, SlotIndex]) -> GatedContext:
        return GatedContext(self.keys[rows], self.values[rows], self.hard[rows], self.log_gates[rows])

    def stored(self) -> tuple[Tensor, ...]:
        return (self.keys, self.values, self.hard, self.log_gates)

    def index(self) -> SlotIndex | None:
        return None


def packed_contexts(kv: SparseKV, dtype: torch.dtype, devices: Sequence[torch.device]) -> list[MountedContext]:
    """One PackedContext for each layer on its device: views of the packed tensors, no copy unless dtype or device differ."""
    selection: Selection = kv.selection
    counts = row_counts(selection)  # [layer, batch, head]
    sizes = counts.sum(dim=(1, 2)).tolist()
    if len(set(devices)) == 1:  # one copy, so that all layers share one storage
        kv = replace(kv, keys=kv.keys.to(device=devices[0], dtype=dtype), values=kv.values.to(device=devices[0], dtype=dtype))
    keys, values = kv.keys.split(sizes), kv.values.split(sizes)
    shared: dict[tuple[torch.device, tuple[int, ...]], SlotIndex] = {}
    contexts: list[MountedContext] = []
    for layer, (row, device) in enumerate(zip(counts.flatten(1).tolist(), devices)):
        known = (device, tuple(row))
        if known not in shared:
            _, valid = padded_index(selection, layer)
            shared[known] = SlotIndex(valid.to(device), valid.flatten().nonzero().flatten().to(device))
        parts = (part[layer].to(device=device, dtype=dtype) for part in (keys, values))
        contexts.append(PackedContext(*parts, shared[known]) if sizes[layer] else NoContext())
    return contexts


def gated_contexts(kv: GatedKV, dtype: torch.dtype, devices: Sequence[torch.device]) -> list[MountedContext]:
    """One GatedContext for each layer on its device; positions beyond a row's context length are closed on both paths."""
    (batch, units, context), layers = kv.hard.shape, len(devices)
    by_layer = (batch, layers, units // layers, context)
    contexts: list[MountedContext] = []
    parts = (kv.keys.view(*by_layer, -1), kv.values.view(*by_layer, -1), kv.hard.view(by_layer), kv.log_gates.view(by_layer))
    for device, keys, values, hard, log_gates in zip(devices, *(part.unbind(1) for part in parts)):
        inside = torch.arange(context, device=device) < kv.context_lengths.to(device)[:, None, None]
        hard, log_gates = hard.to(device) & inside, log_gates.to(device).masked_fill(~inside, float("-inf"))
        contexts.append(GatedContext(keys.to(device=device, dtype=dtype), values.to(device=device, dtype=dtype), hard, log_gates))
    return contexts
