"""The Compiler: Bridge + residual -> target keys and values at the selected positions (spec 4, paper A.2).

It runs in its own precision (float32) whatever the models' dtype, reads no query state, and starts exactly at the Bridge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from acct.compiler.bridge import Bridge
from acct.compiler.fused import compile_slots, fuses
from acct.compiler.grouped import UnitGroups
from acct.compiler.residual import Residual
from acct.compiler.subspace import Subspace
from acct.errors import ConfigError, InputError, InterfaceError, ModelError
from acct.kernels import choose
from acct.selection import batch_index, unit_index
from acct.types import Selection, SourceStates, SparseKV

if TYPE_CHECKING:
    from acct.models.adapter import ModelAdapter
    from acct.models.rotary import Rotary


class Compiler(nn.Module):
    """K^ = K^B + dK, V^ = V^B + dV.

    Attributes:
        bridge: fitted and frozen. residual: trained from zero, or None for the Bridge alone. subspace: what the Bridge reads, beyond the
            paper; None for the source's own vectors.
        mapper: names this Compiler in the identity of what it compiles.
        kernels: which kernel maps the slots without gradients, see `acct.kernels`.
    """

    kernels: str = "plain"

    def __init__(
        self, bridge: Bridge, residual: Residual | None = None, mapper: str = "acct-compiler", subspace: Subspace | None = None
    ) -> None:
        super().__init__()
        self.bridge = bridge
        self.residual = residual
        self.subspace = subspace
        self.mapper = mapper

    def forward(
        self,
        states: SourceStates,
        selection: Selection,
        use_residual: bool = True,
        dtype: torch.dtype | None = None,
        plain: bool = False,
        rotary: Rotary | None = None,
    ) -> SparseKV:
        """Compile the selected slots of a batch.

        Args:
            states: of the source, any dtype, on the Compiler's device. selection: of the target's units.
            use_residual: False leaves the correction out (Bridge-only). dtype: of what is returned; None keeps the Compiler's own.
            plain: Bridge and residual one after the other over all slots, also without gradients: the oracle of `compile_slots`.
            rotary: of the target, for keys rotated to their positions; without gradients they are rotated as they are written.
        Returns:
            Keys before RoPE (see `rotate_kv`) unless a rotary is given, and values, [slot, dim]. The identity says that they are
            transferred, from what and how.
        Raises:
            InputError: the source states at the selection hold NaN or Inf. ModelError: the Compiler's weights do, or its output overflows.
        """
        with torch.autocast(states.keys_pre.device.type, enabled=False):
            given, residual, rotated = states, self.residual if use_residual else None, False
            states = states if self.subspace is None else self.subspace(states)
            if not plain and not torch.is_grad_enabled() and self.takes_kernels:
                from acct.kernels import compilation

                keys, values, total = compilation.compile_slots(self.bridge, residual, states, selection, dtype, rotary)
                self._check(total, keys, values, given, selection)
                rotated = rotary is not None
            elif plain or torch.is_grad_enabled():
                groups = UnitGroups.of(selection)
                keys, values = self.bridge(states, selection, groups)
                if residual is not None:
                    key_correction, value_correction = residual(states, selection, groups)
                    keys, values = keys + key_correction, values + value_correction
                self._check(keys.detach().sum() + values.detach().sum(), keys, values, given, selection)
                keys, values = (part if dtype is None else part.to(dtype) for part in (keys, values))
            else:
                groups = UnitGroups.of(selection)
                keys, values, total = compile_slots(self.bridge, residual, states, selection, groups, dtype, rotary)
                self._check(total, keys, values, given, selection)
                rotated = rotary is not None and fuses(rotary)
        identity = {f"source.{name}": value for name, value in states.identity.items()}
        kv = SparseKV(selection, keys, values, rotated, {"kind": "transferred", "mapper": self.mapper, **identity})
        return kv if rotary is None or rotated else rotate_kv(cast("ModelAdapter", rotary), kv)

    @property
    def takes_kernels(self) -> bool:
        """Whether the Triton kernel maps the slots where there are no gradients: it reads one source vector for a slot.

        Raises:
            ConfigError: it is asked for by name and cannot run.
        """
        if len(self.bridge.reads[0]) == 1 and self.subspace is None:
            return choose(self.kernels, self.bridge.key_map)
        if self.kernels == "triton":
            raise ConfigError(
                "runtime.kernels=triton takes a Bridge that reads one source vector for a slot; compiler.bridge_layers and bridge_heads "
                f"ask for {len(self.bridge.reads[0])}{'' if self.subspace is None else ' out of a subspace (compiler.subspace_width)'}. "
                "Set runtime.kernels to auto or plain."
            )
        return False

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """The residual's parameters; the Bridge is never trained."""
        return (parameter for parameter in self.parameters() if parameter.requires_grad)

    def _check(self, total: Tensor, keys: Tensor, values: Tensor, states: SourceStates, selection: Selection) -> None:
        """Raises unless `total`, the sum of all keys and values in the Compiler's precision, is finite."""
        if bool(torch.isfinite(total)):
            return
        bad = ~(torch.isfinite(keys) & torch.isfinite(values)).all(-1)  # [slot]
        where = "its sum overflows"
        if bool(bad.any()):
            slot = int(bad.nonzero()[0])
            layer, head = divmod(int(unit_index(selection)[slot]), selection.heads)
            where = (
                f"NaN or Inf at {int(bad.sum())} of {len(bad)} slots, the first at position {int(selection.positions[slot])} of "
                f"unit (layer {layer}, head {head}) of example {int(batch_index(selection)[slot])}"
            )
        for name in ("context_hidden", "taps", "keys_pre", "values"):
            if not bool(torch.isfinite(getattr(states, name)).all()):
                raise InputError(f"compiled keys and values must be finite: {where}. The source's {name} already hold NaN or Inf.")
        for name, parameter in self.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise ModelError(f"compiled keys and values must be finite: {where}. The Compiler's weight {name} holds NaN or Inf.")
        raise ModelError(
            f"compiled keys and values must be finite: {where}, though states and weights are finite. The states are too large for "
            f"{keys.dtype}: try compiler.input_norm=rms or check the source."
        )


def rotate_kv(adapter: ModelAdapter, kv: SparseKV, total_lengths: Tensor | None = None) -> SparseKV:
    """The same slots with keys rotated by the target's RoPE at their original positions.

    Args:
        total_lengths: int64 [batch], tokens of each whole sequence; matters for "dynamic" RoPE only. None takes the contexts' lengths.
    Raises:
        InterfaceError: the keys carry a rotation already.
    """
    if kv.rotated:
        raise InterfaceError("these keys are rotated already; rotate the Compiler's output once, before mounting.")
    selection = kv.selection
    totals = (selection.context_lengths if total_lengths is None else total_lengths)[batch_index(selection)]  # [slot]
    return replace(kv, keys=adapter.rotate(kv.keys, selection.positions, totals), rotated=True)
