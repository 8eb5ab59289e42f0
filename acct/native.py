"""What the target itself computes over [context; query]: the teacher of every stage (spec 5; paper A.2.2).

Never an input of the method. Keys and queries are before RoPE; logits are computed at the query positions only. The states keep
the model's dtype, padding is zero, and no gradient flows.
"""

from __future__ import annotations

import torch

from acct.models.adapter import Capture, ForwardStates, ModelAdapter
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
    return native_of(adapter, batch, states)


def native_of(adapter: ModelAdapter, batch: TokenBatch, states: ForwardStates) -> NativeStates:
    """Native states of a batch from a forward over [context; query] that kept keys and values.

    Args:
        states: queries, where they were kept, at `query_places(batch)`; hidden states, where they were kept, the last ones alone.
    Raises:
        ModelError: NaN or Inf in the states.
    """
    assert states.keys_pre is not None and states.values is not None
    keys, values = (tensor.flatten(1, 2) for tensor in (states.keys_pre, states.values))  # [batch, unit, seq, dim]
    hidden = states.hidden[0] if states.hidden else None
    found = NativeStates(
        context_lengths=batch.context_lengths,
        query_lengths=batch.query_lengths,
        context_keys_pre=take_context(keys, batch),
        context_values=take_context(values, batch),
        query_keys_pre=take_query(keys, batch),
        query_values=take_query(values, batch),
        queries_pre=None if states.queries_pre is None else zero_padding_(states.queries_pre, batch.query_lengths),
        logits=None if hidden is None else zero_padding_(adapter.logits_of(take_query(hidden, batch)), batch.query_lengths),
    )
    require_finite("target", **{name: value for name, value in vars(found).items() if not name.endswith("lengths")})
    return found
