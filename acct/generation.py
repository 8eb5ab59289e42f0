"""Greedy generation after a mounted context (spec 4, Mount; paper D.2).

The first generated token is the argmax at the query's last real token; each generated token is fed once, at the next position of its
row, and the last one is never fed. Rows that stopped append padding that stays masked.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acct.cache import MountedCache, extend
from acct.errors import InputError
from acct.models import compat
from acct.models.adapter import ModelAdapter


class Generation(NamedTuple):
    """What each row generated.

    Attributes:
        tokens: generated ids, the stop token removed. ended_by_stop: True where a stop token came, False at the token limit.
    """

    tokens: list[list[int]]
    ended_by_stop: list[bool]


def stop_tokens(adapter: ModelAdapter) -> tuple[int, ...]:
    """The end-of-sequence ids that the model's own generation settings name; empty where it names none."""
    settings = getattr(adapter.model, "generation_config", None)
    found = getattr(settings, "eos_token_id", None)
    if found is None:
        found = adapter.model.config.eos_token_id
    return () if found is None else tuple(found) if isinstance(found, list | tuple) else (int(found),)


def check_queries(query_lengths: Tensor) -> None:
    """Raises InputError naming the first row without a query token: its next token would be undefined."""
    if bool((query_lengths < 1).any()):
        row = int((query_lengths < 1).nonzero()[0])
        raise InputError(f"row {row} has a query of {int(query_lengths[row])} tokens; at least 1 is needed to predict the next one.")


@torch.no_grad()
def greedy(
    adapter: ModelAdapter,
    cache: MountedCache,
    query_ids: Tensor,
    query_lengths: Tensor,
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
    keep: bool = False,
) -> Generation:
    """Greedy continuation of every row, batched over different N and Q.

    Args:
        query_ids: int64 [batch, query], right-padded. query_lengths: int64 [batch], at least 1.
        max_new_tokens: limit for each row, at least 1. stop_ids: ids that end a row; none: always `max_new_tokens` tokens.
        keep: leave the query and the fed tokens in the cache; otherwise the cache is given back as it was found.
    Raises:
        InputError: a row without a query token, or a limit below 1.
    """
    check_queries(query_lengths)
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens must be at least 1, got {max_new_tokens}.")
    mark, device = cache.mark(), adapter.device
    last = (query_lengths.to(device) - 1)[:, None]
    stops = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=device)
    try:
        token = extend(adapter, cache, query_ids, query_lengths, at=last)[:, 0].argmax(dim=-1)  # [batch]
        ended = torch.isin(token, stops)
        tokens, active = [token], [~ended]
        while len(tokens) < max_new_tokens and not bool(ended.all()):
            logits = extend(adapter, cache, token[:, None], (~ended).to(torch.int64))
            token = logits[:, 0].argmax(dim=-1)
            ended = ended | torch.isin(token, stops)
            tokens.append(token)
            active.append(~ended)
    finally:
        if not keep:
            cache.rewind(mark)
    table, kept = torch.stack(tokens, dim=1).tolist(), torch.stack(active, dim=1).sum(dim=1).tolist()
    return Generation([row[:count] for row, count in zip(table, kept)], ended.tolist())


@torch.no_grad()
def generate_hf(
    adapter: ModelAdapter, cache: MountedCache, query_ids: Tensor, max_new_tokens: int, keep: bool = False, **settings: Any
) -> Tensor:
    """transformers' own `generate` on a mounted cache: int64 [batch, new], padded after a stop token as transformers pads.

    It derives positions from the number of tokens it is given, so rows must agree in N and carry no padding; dummy tokens stand for the
    context and are cut off by transformers before the embedding. Settings that look at past tokens (repetition penalty) would see them.

    Args:
        query_ids: int64 [batch, query] without padding. settings: passed to `generate`, e.g. do_sample, num_beams (rows of `cache` must
            then be repeated first), eos_token_id.
        keep: leave the query and the generated tokens in the cache; otherwise it is given back as it was found.
    """
    mark, length = cache.mark(), cache.get_seq_length()
    dummies = query_ids.new_full((query_ids.shape[0], length), _dummy_token(adapter))
    ids = torch.cat([dummies, query_ids], dim=1).to(adapter.device)
    arguments: dict[str, Any] = {"do_sample": False, **settings, compat.cache_argument(adapter.model): cache}
    out = adapter.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, **arguments)
    if not keep and mark.owner == id(cache.history):  # beams replace the rows: there is no former state to come back to
        cache.rewind(mark)
    return out[:, ids.shape[1] :]


def _dummy_token(adapter: ModelAdapter) -> int:
    """Any id but the padding id, which transformers would read as padding."""
    return 1 if adapter.model.config.pad_token_id == 0 else 0
