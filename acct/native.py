"""What the target itself computes over [context; query]: the teacher of every stage (spec 5; paper A.2.2).

Never an input of the method. Keys and queries are before RoPE; logits are computed at the query positions only. The states keep
the model's dtype, padding is zero, and no gradient flows.
"""

from __future__ import annotations

import torch

from acct.models.adapter import Capture, ModelAdapter
from acct.models.batching import check_batch, query_places, require_finite, take_context, take_query, zero_padding_
from acct.types import NativeStates, TokenBatch


@torch.no_grad()
def read_native(adapter: ModelAdapter, batch: TokenBatch, queries: bool = False, logits: bool = False) -> NativeStates:
    """Run the target over [context; query] as it is.

    Args:
        batch: N >= 1 and Q >= 1 in every row; rows may differ in both.
        queries: keep q* before RoPE at the query positions. logits: compute logits there.
    Raises:
        InputError: an empty context or query, or an id outside the vocabulary. ModelError: NaN or Inf in the states.
    """
    check_batch(batch)
    batch = batch.to(adapter.device)
    ids, lengths = batch.joined()
    capture = Capture(hidden=(adapter.geometry.layers,) if logits else False, keys=True, queries=queries)
    states = adapter.forward(ids, lengths, capture, query_positions=query_places(batch))
    keys, values = (tensor.flatten(1, 2) for tensor in (states.keys_pre, states.values))  # [batch, unit, seq, dim]
    found = NativeStates(
        context_lengths=batch.context_lengths,
        query_lengths=batch.query_lengths,
        context_keys_pre=take_context(keys, batch),
        context_values=take_context(values, batch),
        query_keys_pre=take_query(keys, batch),
        query_values=take_query(values, batch),
        queries_pre=zero_padding_(states.queries_pre, batch.query_lengths) if queries else None,
        logits=zero_padding_(adapter.logits_of(take_query(states.hidden[0], batch)), batch.query_lengths) if logits else None,
    )
    require_finite("target", **{name: value for name, value in vars(found).items() if not name.endswith("lengths")})
    return found
