"""Right-padded batches of [context; query]: checks, and gathers without a loop over rows."""

from __future__ import annotations

import torch
from torch import Tensor

from acct.errors import InputError, ModelError
from acct.types import TokenBatch


def check_lengths(name: str, ids: Tensor, lengths: Tensor) -> None:
    """Demand int64 ids [batch, width] and lengths [batch] in [1, width].

    Raises:
        InputError: naming the row, what it has and what was expected.
    """
    if ids.dim() != 2 or lengths.shape != ids.shape[:1] or ids.dtype != torch.int64 or lengths.dtype != torch.int64:
        raise InputError(
            f"{name} ids must be int64 [batch, {name}] with int64 lengths [batch], got {ids.dtype} {list(ids.shape)} "
            f"with {lengths.dtype} {list(lengths.shape)}."
        )
    wrong = (lengths < 1) | (lengths > ids.shape[1])
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        length = int(lengths[row])
        if length < 1:
            raise InputError(f"row {row} has an empty {name}. Give at least one {name} token.")
        raise InputError(f"row {row} claims {length} {name} tokens, but the {name} ids are only {ids.shape[1]} wide.")


def check_batch(batch: TokenBatch) -> None:
    """Demand a context and a query in every row; raises InputError like `check_lengths`."""
    check_lengths("context", batch.context_ids, batch.context_lengths)
    check_lengths("query", batch.query_ids, batch.query_lengths)
    if batch.context_ids.shape[0] != batch.query_ids.shape[0]:
        raise InputError(f"a batch needs as many queries as contexts, got {batch.query_ids.shape[0]} and {batch.context_ids.shape[0]}.")


def mask_of(lengths: Tensor, width: int) -> Tensor:
    """bool [batch, width], true at real tokens."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def query_places(batch: TokenBatch) -> Tensor:
    """Where each query token lies in the joined row: int64 [batch, query]; padding repeats the row's last token."""
    offsets = torch.arange(batch.query_ids.shape[1], device=batch.query_ids.device)
    return batch.context_lengths[:, None] + torch.minimum(offsets, batch.query_lengths[:, None] - 1)


def last_query_places(context_lengths: Tensor, query_lengths: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Where the last `rows` query tokens lie in the joined row, and which of them there are: int64 and bool [batch, row]."""
    places = (context_lengths + query_lengths)[:, None] - rows + torch.arange(rows, device=context_lengths.device)
    return places.clamp(min=0), places >= context_lengths[:, None]


def take_context(states: Tensor, batch: TokenBatch) -> Tensor:
    """The context part of states [batch, ..., seq, dim], zero at padding; contiguous and apart from `states`."""
    width = batch.context_ids.shape[1]
    return zero_padding_(states[..., :width, :].clone(memory_format=torch.contiguous_format), batch.context_lengths)


def take_query(states: Tensor, batch: TokenBatch) -> Tensor:
    """The query part [batch, ..., query, dim] of states [batch, ..., seq, dim], zero at padding."""
    places = query_places(batch)
    between = (1,) * (states.dim() - 3)
    index = places.view(places.shape[0], *between, -1, 1).expand(*states.shape[:-2], -1, states.shape[-1])
    return zero_padding_(states.gather(-2, index), batch.query_lengths)


def zero_padding_(states: Tensor, lengths: Tensor) -> Tensor:
    """Write zeros into states [batch, ..., width, dim] from each row's length on, whatever was there (NaN too); returns `states`.

    Only the columns past the shortest row are touched.
    """
    shortest = int(lengths.min())
    ragged = states[..., shortest:, :]
    if ragged.shape[-2]:
        padding = ~mask_of(lengths, states.shape[-2])[:, shortest:]
        ragged.masked_fill_(padding.view(padding.shape[0], *(1,) * (states.dim() - 3), -1, 1), 0)
    return states


def require_finite(model: str, **states: Tensor | None) -> None:
    """Raises ModelError naming the first of the states that holds NaN or Inf, and where. One device synchronisation."""
    present = {name: tensor for name, tensor in states.items() if tensor is not None}
    total = torch.stack([tensor.sum(dtype=torch.float32) for tensor in present.values()]).sum()
    if bool(torch.isfinite(total)):
        return
    for name, tensor in present.items():
        wrong = ~torch.isfinite(tensor)
        if bool(wrong.any()):
            index = ", ".join(str(int(i)) for i in wrong.nonzero()[0])
            raise ModelError(
                f"the {model} model computed NaN or Inf in {name} at index ({index}), {int(wrong.sum())} of {tensor.numel()} numbers. "
                "Try dtype=float32, or check the weights."
            )
