"""Scores one unit and one position at a time, float64, from the formulas and the module's stored weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def scores(state: dict[str, Tensor], heads: int, context_hidden: Tensor, query_hidden: Tensor) -> Tensor:
    """One example without padding: context_hidden [N, hidden], query_hidden [Q, hidden] -> [unit, N]."""
    w = {name: value.double() for name, value in state.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]

    def features(hidden: Tensor) -> Tensor:
        return norm(F.gelu(norm(hidden.double(), "input_norm") @ w["input.weight"].T + w["input.bias"]), "feature_norm")

    x_features, y_features = features(context_hidden), features(query_hidden)
    d = w["to_query.weight"].shape[0]
    length = len(x_features)

    def attend(query: Tensor, rows: Tensor) -> Tensor:
        weights = torch.stack([query @ (w["to_key.weight"] @ row) / math.sqrt(d) for row in rows]).softmax(0)
        return sum(a * (w["to_value.weight"] @ row) for a, row in zip(weights, rows))

    s = [attend(w["to_query.weight"] @ slot, y_features) for slot in w["query_slots"]]
    z = [attend(row, x_features) for row in s]
    z_mean = sum(z) / len(z)
    units = len(w["layer_codes.weight"]) * heads
    result = torch.zeros(units, length, dtype=torch.float64)
    for p in range(units):
        e = w["code.weight"] @ torch.cat([w["layer_codes.weight"][p // heads], w["head_codes.weight"][p % heads]])
        inner = F.gelu(w["film.0.weight"] @ torch.cat([e, z_mean]) + w["film.0.bias"])
        film = w["film.2.weight"] @ inner + w["film.2.bias"]
        gamma, beta = 1 + torch.tanh(film[:d]), film[d:]
        modulated = [w["slot.weight"] @ (gamma * row + beta) + w["slot.bias"] for row in z]
        for i in range(length):
            x = w["token.weight"] @ x_features[i] + w["token.bias"]
            m = torch.stack([row @ x / math.sqrt(d) for row in modulated])
            angles = [2**k * math.pi * i / length for k in range(4)]
            phi = [i / length, (length - 1 - i) / length, *(math.sin(a) for a in angles), *(math.cos(a) for a in angles)]
            inside = x + w["match.weight"] @ m + w["position.weight"] @ torch.tensor(phi, dtype=torch.float64)
            result[p, i] = w["readout.weight"][0] @ F.gelu(inside)
    return result
