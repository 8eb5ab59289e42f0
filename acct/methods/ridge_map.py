"""A closed-form linear map of a whole context, the comparison row of the latency suite (spec 11; the second system's first stage).

    K^_{p,i} = [K_S[l_1, h, i]; ...; K_S[l_m, h, i]] W_p^K,    V^ likewise,    for every position i

Per head: unit p reads the head pi_H of the m source layers nearest to pi_L, keys before RoPE. Nothing is selected, so that it maps and
stores N positions where the Compiler handles rho N. The maps are zero until they are fitted or loaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acct.errors import ConfigError, SelectionError
from acct.geometry import PairGeometry
from acct.types import SourceStates

CPU_NUMBERS = 1 << 20
"""Numbers of one block's features on the CPU, where they stay in cache."""


def nearest_layers(middle: int, count: int, layers: int) -> tuple[int, ...]:
    """`count` consecutive layers around `middle`, moved inside [0, layers) at the ends."""
    first = min(max(middle - (count - 1) // 2, 0), layers - count)
    return tuple(range(first, first + count))


class RidgeMap(nn.Module):
    """Maps [unit, m * source dim, dim] of keys and of values.

    Args:
        source_layers: m, 1 to L_S.
    Raises:
        ConfigError: more source layers than there are.
    """

    def __init__(self, geometry: PairGeometry, source_layers: int = 1) -> None:
        super().__init__()
        source, target = geometry.source, geometry.target
        if not 1 <= source_layers <= source.layers:
            raise ConfigError(f"a ridge map reads 1 to {source.layers} source layers, got {source_layers}.")
        self.geometry, self.source_layers = geometry, source_layers
        shape = (geometry.units, source_layers * source.head_dim, target.head_dim)
        self.key_map, self.value_map = (nn.Parameter(torch.zeros(shape), requires_grad=False) for _ in range(2))
        chosen = [nearest_layers(middle, source_layers, source.layers) for middle in geometry.source_layers()]
        rows = [[layer * source.kv_heads + head for layer in layers] for layers, head in zip(chosen, geometry.source_heads())]
        self.register_buffer("rows", torch.tensor(rows), persistent=False)  # [unit, m] of [layer * head]

    @torch.no_grad()
    def forward(self, states: SourceStates, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Keys before RoPE and values of every context position: two [batch, unit, context, dim].

        Args:
            dtype: of the result; None for the maps' own.
        Raises:
            SelectionError: states of another pair.
        """
        source, dim = self.geometry.source, self.geometry.target.head_dim
        if states.keys_pre.shape[1:3] != (source.layers, source.kv_heads) or states.keys_pre.shape[-1] != source.head_dim:
            raise SelectionError(f"source keys of shape {tuple(states.keys_pre.shape)} do not fit {source}.")
        batch, _, _, context, width = states.keys_pre.shape
        features = self.source_layers * width
        places = max(CPU_NUMBERS // features, 1) if states.keys_pre.device.type == "cpu" else context
        results = []
        for stored, maps in ((states.keys_pre, self.key_map), (states.values, self.value_map)):
            flat = stored.flatten(1, 2)  # [batch, layer * head, context, dim]
            result = flat.new_empty(batch, self.geometry.units, context, dim, dtype=dtype or maps.dtype)
            step = max(places // context, 1) if states.keys_pre.device.type == "cpu" else self.geometry.units
            for first in range(0, self.geometry.units, step):
                rows, weights = self.rows[first : first + step], maps[first : first + step]
                for start in range(0, context, places):
                    part = flat[:, rows.flatten(), start : start + places].unflatten(1, rows.shape)  # [batch, unit, m, place, dim]
                    part = part.transpose(2, 3).flatten(3).to(maps.dtype)  # [batch, unit, place, m * dim]
                    result[:, first : first + step, start : start + places] = part @ weights
            results.append(result)
        return results[0], results[1]
