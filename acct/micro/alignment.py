"""How linear the states of two models are in one another, as a loss and as something to measure.

Context transfer rests on it: what the Compiler can make of source states is bounded by what a map of them predicts. Larger families have it
from their size; the large embedded models, grown out of the small ones, are kept to it (`recipe`), and `check` measures it on held-out
documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acct.geometry import layer_map


def unexplained(inputs: Tensor, outputs: Tensor, ridge: float = 1e-3) -> Tensor:
    """1 - R2 of the best affine map from `inputs` [token, a] to `outputs` [token, b], differentiable in both.

    The map is solved on detached values; at the optimum the loss does not depend on it to first order (envelope theorem).
    """
    x, y = inputs - inputs.mean(0), outputs - outputs.mean(0)
    with torch.no_grad():
        gram = x.mT @ x
        gram.diagonal().add_(ridge * gram.diagonal().mean())
        solved = torch.linalg.solve_ex(gram, x.mT @ y)[0]
    return (y - x @ solved).square().sum() / y.square().sum()


@dataclass(frozen=True)
class Reading:
    """What one model holds at some tokens.

    Attributes:
        hidden: L + 1 tensors [token, hidden], the last after the final norm.
        keys, values: L tensors [token, head, dim], keys after native normalisation and before RoPE.
    """

    hidden: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]


@contextmanager
def reading_of(model: PreTrainedModel) -> Iterator[dict[tuple[str, int], Tensor]]:
    """Inside the block, forwards of the model leave their keys before RoPE and their values here, by ("keys" or "values", layer)."""
    seen: dict[tuple[str, int], Tensor] = {}
    handles = []
    for number, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        for name, module in (("keys", getattr(attention, "k_norm", attention.k_proj)), ("values", attention.v_proj)):

            def keep(_module, _inputs, output, key=(name, number), width=attention.head_dim):
                seen[key] = output.reshape(*output.shape[:2], -1, width)

            handles.append(module.register_forward_hook(keep))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def gather_reading(hidden: Sequence[Tensor], seen: dict[tuple[str, int], Tensor], real: Tensor) -> Reading:
    """The real tokens of a batch, rows joined."""
    layers = len(hidden) - 1
    return Reading(
        [h[real] for h in hidden],
        [seen["keys", layer][real] for layer in range(layers)],
        [seen["values", layer][real] for layer in range(layers)],
    )


def alignment(source: Reading, target: Reading) -> tuple[Tensor, Tensor]:
    """Mean 1 - R2 of the target's states from the source's whole hidden states at matching relative depth.

    The heads that the Bridge pairs are not asked to be alike: how far one source head explains one target head is left to training.

    Returns:
        Of hidden states, the final one included; of keys and values.
    """
    layers = len(target.keys)
    depth = layer_map(layers, len(source.keys))
    hidden = [unexplained(source.hidden[depth[layer]], target.hidden[layer]) for layer in range(layers)]
    hidden.append(unexplained(source.hidden[-1], target.hidden[-1]))
    states = [
        unexplained(source.hidden[depth[layer]], wanted[layer].flatten(1))
        for layer in range(layers)
        for wanted in (target.keys, target.values)
    ]
    return torch.stack(hidden).mean(), torch.stack(states).mean()
