"""A closed-form linear map of a whole context, a row beside the method and the comparison of the latency suite (spec 11).

    local   K^_{p,i} = [K_S[l_1, pi_H(h), i]; ...; K_S[l_m, pi_H(h), i]] W_p^K            one map for each unit p = (l, h)
    all     K^_{l,i} = [K_S[l_1, 1, i]; ...; K_S[l_m, H_S, i]] W_l^K                      one map for each target layer, all heads at once

V^ likewise, for every position i, keys before RoPE, l_1 ... l_m the m source layers nearest to pi_L. Nothing is selected, so that it maps
and stores N positions where the Compiler handles rho N. `acct.methods.ridge_fit` solves for the maps; they are zero until then.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from acct.errors import ConfigError, SelectionError
from acct.geometry import PairGeometry
from acct.types import SourceStates

CPU_NUMBERS = 1 << 20
"""Numbers of one block's features on the CPU, where they stay in cache."""
DEVICE_NUMBERS = 1 << 28
"""The same elsewhere: few launches, and at most 1 GB of float32 beside the result."""
HEADS = ("local", "all")
"""What one map reads of a source layer: the head pi_H of its unit, or every KV head."""
KEPT = "_kept"
"""Behind a map's name: its row at ACCT's positions instead of all."""
_NAME = re.compile(r"ridge_([1-9][0-9]*)(_all)?")


def ridge_name(source_layers: int, heads: str = "local") -> str:
    """Name of a map in rows, artifacts and timings: ridge_8 is head-local from 8 source layers, ridge_8_all reads all heads."""
    return f"ridge_{source_layers}" + ("_all" if heads == "all" else "")


def parse_ridge(name: str) -> tuple[int, str] | None:
    """Source layers and heads of a name; None for any other name."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), "all" if found[2] else "local")


def map_of_row(name: str) -> str | None:
    """The map that a row mounts, `ridge_8` of `ridge_8` and of `ridge_8_kept`; None for any other row."""
    own = name.removesuffix(KEPT)
    return None if parse_ridge(own) is None else own


class RidgeMap(nn.Module):
    """Maps [group, features, outputs] of keys and of values, float32 unless moved; a group is a unit ("local") or a target layer ("all").

    Args:
        source_layers: m, 1 to L_S. heads: one of HEADS.
    Attributes:
        rows: int64 [group, features / source dim], the source vectors [layer * head] that a group reads, layer first.
        targets: int64 [group, outputs / dim], the units that a group gives.
    Raises:
        ConfigError: more source layers than there are, or unknown heads.
    """

    def __init__(self, geometry: PairGeometry, source_layers: int = 1, heads: str = "local") -> None:
        super().__init__()
        source, target = geometry.source, geometry.target
        if heads not in HEADS:
            raise ConfigError(f"heads of a ridge map must be one of {', '.join(HEADS)}, got {heads!r}.")
        self.geometry, self.source_layers, self.heads = geometry, source_layers, heads
        every = heads == "all"
        read = geometry.source_reads(source_layers, "all" if every else "modulo")[:: target.kv_heads if every else 1]
        rows, targets = torch.tensor(read), torch.arange(geometry.units).view(len(read), -1)
        shape = (len(read), rows.shape[1] * source.head_dim, targets.shape[1] * target.head_dim)
        self.key_map, self.value_map = (nn.Parameter(torch.zeros(shape), requires_grad=False) for _ in range(2))
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("targets", targets, persistent=False)

    @torch.no_grad()
    def forward(self, states: SourceStates, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Keys before RoPE and values of every context position: two [batch, unit, context, dim].

        A block of source vectors is gathered once for a group, so that all heads of a layer share it under "all". A block is as many
        positions of a group, or whole groups, as CPU_NUMBERS or DEVICE_NUMBERS allow; blocks are batched products.

        Args:
            dtype: of the result; None for the maps' own.
        Raises:
            SelectionError: states of another pair.
        """
        source, dim = self.geometry.source, self.geometry.target.head_dim
        if states.keys_pre.shape[1:3] != (source.layers, source.kv_heads) or states.keys_pre.shape[-1] != source.head_dim:
            raise SelectionError(f"source keys of shape {tuple(states.keys_pre.shape)} do not fit {source}.")
        batch, context = states.keys_pre.shape[0], states.keys_pre.shape[3]
        groups, features, _ = self.key_map.shape
        numbers = CPU_NUMBERS if states.keys_pre.device.type == "cpu" else DEVICE_NUMBERS
        places = min(max(numbers // features, 1), context)
        step = max(numbers // (features * places), 1)
        results = []
        for stored, maps in ((states.keys_pre, self.key_map), (states.values, self.value_map)):
            flat = stored.flatten(1, 2)  # [batch, layer * head, context, dim]
            result = flat.new_empty(batch, groups, self.targets.shape[1], context, dim, dtype=dtype or maps.dtype)
            for first in range(0, groups, step):
                rows, weights = self.rows[first : first + step], maps[first : first + step]
                for start in range(0, context, places):
                    part = flat[:, rows.flatten(), start : start + places].unflatten(1, rows.shape)  # [batch, group, row, place, dim]
                    part = part.transpose(2, 3).flatten(3).to(maps.dtype)  # [batch, group, place, features]
                    mapped = (part @ weights).unflatten(-1, (-1, dim)).transpose(2, 3)  # [batch, group, head, place, dim]
                    result[:, first : first + step, :, start : start + places] = mapped
            results.append(result.flatten(1, 2))
        return results[0], results[1]
