"""The Bridge as a loop: all rows of one unit at once, augmented least squares with an unpenalised bias, float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acct.geometry import PairGeometry
from acct.selection import batch_index, unit_index
from acct.types import NativeStates, Selection, SourceStates

Triple = tuple[SourceStates, Selection, NativeStates]


def observations(
    parts: Sequence[Triple], geometry: PairGeometry, unit: int, kind: str, reads: Sequence[tuple[int, int]] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """X [row, features] and Y [row, dim] of one unit over all batches, one slot after the other; kind is "keys" or "values".

    Args:
        reads: (layer, head) of the source vectors side by side in X; None: (pi_L, pi_H).
    """
    reads = [(geometry.source_layers()[unit], geometry.source_heads()[unit])] if reads is None else reads
    x, y = [], []
    for states, selection, native in parts:
        source = states.keys_pre if kind == "keys" else states.values
        target = native.context_keys_pre if kind == "keys" else native.context_values
        for b, p, i in zip(batch_index(selection).tolist(), unit_index(selection).tolist(), selection.positions.tolist()):
            if p == unit:
                x.append(np.concatenate([source[b, layer, head, i].double().numpy() for layer, head in reads]))
                y.append(target[b, unit, i].double().numpy())
    return np.array(x).reshape(-1, len(reads) * geometry.source.head_dim), np.array(y).reshape(-1, geometry.target.head_dim)


def fit(x: np.ndarray, y: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """min ||X A + 1 b^T - Y||^2 + penalty ||A||^2 by stacking sqrt(penalty) I under [X, 1]: A and b."""
    width = x.shape[1]
    rows = np.concatenate([np.concatenate([x, np.ones((len(x), 1))], 1), np.sqrt(penalty) * np.eye(width, width + 1)])
    solution = np.linalg.lstsq(rows, np.concatenate([y, np.zeros((width, y.shape[1]))]), rcond=None)[0]
    return solution[:width], solution[width]


def r2(x: np.ndarray, y: np.ndarray, maps: np.ndarray, bias: np.ndarray) -> float:
    """1 - squared errors / squares about the mean."""
    return float(1 - np.square(y - x @ maps - bias).sum() / np.square(y - y.mean(0)).sum())
