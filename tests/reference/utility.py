"""Delete a token, renormalise the row, subtract: one loop per index, float64."""

from __future__ import annotations

import torch
from torch import Tensor


def deletion_utility(
    queries: Tensor, rows: list[int], keys: Tensor, values: Tensor, context: int, scaling: float, epsilon: float
) -> Tensor:
    """One unit of one example.

    Args:
        queries: [query_head, row, dim] rotated. rows: place of each valid row in the history; it sees 0 .. place.
        keys, values: [history, dim].
    Returns:
        [context].
    """
    queries, keys, values = queries.double(), keys.double(), values.double()
    outputs, changes = [], []
    for head in range(len(queries)):
        for row, place in enumerate(rows):
            logits = scaling * keys[: place + 1] @ queries[head, row]
            output = logits.softmax(0) @ values[: place + 1]
            change = []
            for i in range(context):
                kept = [j for j in range(place + 1) if j != i]
                change.append((logits[kept].softmax(0) @ values[kept] - output).square().sum())
            outputs.append(output.square().sum())
            changes.append(torch.stack(change))
    energy = torch.stack(outputs)
    return (torch.stack(changes) / (energy + epsilon * energy.mean())[:, None]).mean(0)
