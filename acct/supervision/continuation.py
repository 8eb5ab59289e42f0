"""The target's own greedy continuation as a further part of the query, for the Compiler's loss beyond the paper [ours].

The paper's L_attn and L_beh look at the query's last positions, where a chat prompt predicts no more than the first token of an answer.
After [query; continuation] they also look where the answer's later tokens are read from the context. No reference answer is used, and
nothing of it reaches the source.
"""

from __future__ import annotations

import torch

from acct.models.batching import take_context, take_query
from acct.supervision.teacher import AttentionRows
from acct.types import NativeStates, TokenBatch


def with_continuation(batch: TokenBatch, rows: AttentionRows) -> tuple[TokenBatch, NativeStates]:
    """[context; query + continuation] and the native states of it.

    Args:
        batch: the examples. rows: of the same examples, from `attention_rows`.
    Returns:
        The longer batch, and native states whose `queries_pre` are zero but at the rows that were looked at: at least the last
        `query_rows` positions, or all when there are fewer.
    """
    device = rows.lengths.device
    batch = batch.to(device)
    counts = torch.tensor([len(tokens) for tokens in rows.continuations], device=device)
    lengths = batch.query_lengths + counts
    ids = torch.zeros(batch.batch, int(lengths.max()), dtype=torch.int64, device=device)
    ids[:, : batch.query_ids.shape[1]] = batch.query_ids
    for example, (tokens, start) in enumerate(zip(rows.continuations, batch.query_lengths.tolist())):
        ids[example, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.int64, device=device)
    longer = TokenBatch(batch.context_ids, batch.context_lengths, ids, lengths)
    keys, values = (x.flatten(1, 2) for x in (rows.keys_pre, rows.values))  # [batch, unit, history, dim]
    queries = rows.queries_pre.new_zeros(*rows.queries_pre.shape[:3], ids.shape[1] + 1, rows.queries_pre.shape[-1])
    place = (rows.positions - batch.context_lengths[:, None]).masked_fill(~rows.valid, ids.shape[1])  # what is not valid: the last column
    queries.scatter_(3, place[:, None, None, :, None].expand_as(rows.queries_pre), rows.queries_pre)
    return longer, NativeStates(
        context_lengths=longer.context_lengths,
        query_lengths=lengths,
        context_keys_pre=take_context(keys, longer),
        context_values=take_context(values, longer),
        query_keys_pre=take_query(keys, longer),
        query_values=take_query(values, longer),
        queries_pre=queries[..., :-1, :],
    )
