"""The residual one example, one head, one slot at a time, from its formulas and its weights, in the weights' dtype (float64)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from acct.compiler.residual import Residual
from acct.selection import batch_index, unit_index
from acct.types import Selection, SourceStates


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    scaled = x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return scaled if weight is None else weight * scaled


def attend(x: Tensor, memory: Tensor, weights: dict[str, Tensor], prefix: str, head_width: int) -> Tensor:
    """x [place, width] over memory [entry, width]."""
    query, key, value = (
        states @ weights[f"{prefix}.{name}_map.weight"].T for name, states in (("query", x), ("key", memory), ("value", memory))
    )
    heads = []
    for start in range(0, x.shape[1], head_width):
        part = slice(start, start + head_width)
        logits = query[:, part] @ key[:, part].T / math.sqrt(head_width)
        heads.append(logits.softmax(-1) @ value[:, part])
    return torch.cat(heads, 1) @ weights[f"{prefix}.output_map.weight"].T


def block(x: Tensor, memory: Tensor, weights: dict[str, Tensor], prefix: str, module: Residual, self_attention: bool) -> Tensor:
    shape = module.shape

    def norm(name: str, states: Tensor) -> Tensor:
        return rms_norm(states, weights[f"{prefix}.{name}.weight"], shape.norm_epsilon)

    if self_attention:
        x = x + attend(norm("self_norm", x), norm("self_norm", x), weights, f"{prefix}.self_attention", shape.head_width)
    read = norm("memory_norm", memory) if shape.memory_norm else memory
    x = x + attend(norm("cross_norm", x), read, weights, f"{prefix}.cross_attention", shape.head_width)
    inner = norm("feed_norm", x)
    gate, up, down = (weights[f"{prefix}.feed_forward.{name}_map.weight"] for name in ("gate", "up", "down"))
    gated = inner @ gate.T
    return x + ((gated * gated.sigmoid()) * (inner @ up.T)) @ down.T


def corrections(module: Residual, states: SourceStates, selection: Selection) -> tuple[Tensor, Tensor]:
    """dK and dV [slot, dim]; gradients reach the module's parameters."""
    weights, shape = dict(module.named_parameters()), module.shape
    dtype = module.latents.dtype
    keys, values = [], []
    z: list[dict[int, Tensor]] = []
    for b, length in enumerate(selection.context_lengths.tolist()):
        inputs = [states.context_hidden[b, :length], *states.taps[b, :, :length]]
        inputs = [x.to(dtype) for x in inputs]
        if shape.input_norm == "rms":
            inputs = [rms_norm(x, None, shape.norm_epsilon) for x in inputs]
        embedded = torch.cat(inputs, -1) @ weights["embedding.weight"].T
        if shape.input_bias:
            embedded = embedded + weights["embedding.bias"]
        latents = module.latents
        for depth in range(shape.depth):
            latents = block(latents, embedded, weights, f"encoder.{depth}", module, True)
        z.append({})
        for i in range(length):
            state = embedded[i : i + 1]
            for depth in range(shape.depth):
                state = block(state, latents, weights, f"decoder.{depth}", module, False)
            z[b][i] = rms_norm(state, weights["final_norm.weight"], shape.norm_epsilon)[0]
    where = zip(batch_index(selection).tolist(), unit_index(selection).tolist(), selection.positions.tolist())
    for slot, (b, p, i) in enumerate(where):
        length, tail = int(selection.context_lengths[b]), int(selection.tails[b])
        rank = 0.0 if bool(selection.is_tail[slot]) else int(selection.ranks[slot]) / (length - tail)
        xi = torch.tensor([i / length, rank, (int(selection.counts[b, p]) - tail) / length, float(i >= length - tail)], dtype=dtype)
        conditioned = z[b][i] + xi @ weights["condition_map"]
        keys.append(conditioned @ weights["key_readout"][p] + weights["key_bias"][p])
        values.append(conditioned @ weights["value_readout"][p] + weights["value_bias"][p])
    return torch.stack(keys), torch.stack(values)
