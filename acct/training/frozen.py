"""What a step of the Compiler needs of the frozen models and selections, computed once for a batch (spec 4, 5; paper B.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from acct.compiler.bridge import Bridge
from acct.compiler.grouped import UnitGroups
from acct.losses.compilation import AttentionTeacher
from acct.types import NativeStates, Selection, SourceStates


@dataclass(frozen=True)
class FrozenBatch:
    """What a step needs of the frozen models for one batch.

    Attributes:
        selection, groups: frozen. states: hidden states and taps only (keys and values are cut off).
        bridge: whose output the next two are; None while they are what a Bridge maps.
        source_keys, source_values: [slot, features], or K^B and V^B [slot, dim]. native_keys, native_values: [slot, dim].
        totals: int64 [batch], N + Q.
        teacher_attention: for L_attn and L_out, None when neither has a weight. teacher_logits: [batch, row, vocabulary] at the last
        query positions with the native states mounted, None when the behaviour weight is 0.
        query_ids [batch, query], query_lengths [batch].
    """

    selection: Selection
    groups: UnitGroups
    states: SourceStates
    source_keys: Tensor
    source_values: Tensor
    native_keys: Tensor
    native_values: Tensor
    totals: Tensor
    teacher_attention: AttentionTeacher | None
    teacher_logits: Tensor | None
    query_ids: Tensor
    query_lengths: Tensor
    bridge: Bridge | None = None

    def bytes(self) -> int:
        """Memory of its tensors."""
        held = [getattr(self, name) for name in ("source_keys", "source_values", "native_keys", "native_values")]
        held += [self.states.context_hidden, self.states.taps]
        held += [] if self.teacher_logits is None else [self.teacher_logits]
        held += [t for t in vars(self.teacher_attention).values() if isinstance(t, Tensor)] if self.teacher_attention is not None else []
        return sum(tensor.numel() * tensor.element_size() for tensor in {id(tensor): tensor for tensor in held}.values())


def move_native(native: NativeStates, device: torch.device) -> NativeStates:
    """Native states on the interface's device."""
    return replace(native, **{name: value.to(device) for name, value in vars(native).items() if isinstance(value, Tensor)})


def without_cache(states: SourceStates) -> SourceStates:
    """The states without their keys and values, which the residual does not read."""
    return replace(states, keys_pre=states.keys_pre[..., :0, :].clone(), values=states.values[..., :0, :].clone())
