"""The check before every run: native KV mounted at every position gives the native run (spec 7, paper D.2).

The target reads [context; query] natively; its own keys and values are then mounted at every position of every unit, rotated at their
positions, and the query is run on them. Up to a few generated tokens and the stop token must be equal, and the NLL of the native
tokens within a tolerance. Where two tokens are as good as each other to the rounding of the model's type, either may come: in bfloat16
logits of 20 are 0.125 apart, and ties are common. It checks rotation, positions, masks and stop behaviour at once, and nothing of
the transfer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from acct.cache import MountedCache, extend, mounted
from acct.data.batches import padded
from acct.errors import InterfaceError
from acct.generation import greedy, stop_tokens
from acct.likelihood import candidate_nll
from acct.models.adapter import ModelAdapter
from acct.native import read_native
from acct.selection import batch_index, full_selection, gather_native
from acct.types import SparseKV, TokenBatch

TIE = 2
"""Logits closer than this many units of rounding of the larger one are a tie."""


@dataclass(frozen=True)
class InterfaceReport:
    """What the check saw.

    Attributes:
        native_tokens, mounted_tokens: generated ids of each example, up to and including the stop token.
        ties: examples whose tokens part at a tie of the native logits.
        nll_difference: largest |NLL difference| over examples and their candidates, mean over a candidate's tokens.
        logit_difference: largest |logit difference| at the query's last token.
        smallest_margin: smallest gap between the best and second native logit there; a token flip below `logit_difference` is a near-tie.
    """

    native_tokens: list[list[int]]
    mounted_tokens: list[list[int]]
    nll_difference: float
    logit_difference: float
    smallest_margin: float
    ties: int = 0


def mount_everything(adapter: ModelAdapter, batch: TokenBatch) -> SparseKV:
    """The target's own states at every position of every unit, rotated: what mounting must reproduce the native run with."""
    native = read_native(adapter, batch)
    selection = full_selection(batch.context_lengths.to(adapter.device), adapter.geometry.layers, adapter.geometry.kv_heads)
    keys_pre, values = gather_native(selection, native)
    totals = (batch.context_lengths + batch.query_lengths).to(adapter.device)[batch_index(selection)]
    return SparseKV(selection, adapter.rotate(keys_pre, selection.positions, totals), values, rotated=True)


@torch.no_grad()
def interface_check(
    adapter: ModelAdapter,
    batch: TokenBatch,
    max_new_tokens: int = 4,
    nll_tolerance: float = 0.05,
    stop_ids: Collection[int] | None = None,
    candidates: Sequence[Sequence[Sequence[int]]] | None = None,
) -> InterfaceReport:
    """Compare the mounted with the native run.

    Args:
        batch: contexts and queries, any lengths. max_new_tokens: generated tokens that must agree, the stop token among them.
        nll_tolerance: nats, on the mean token NLL of a candidate. stop_ids: None for the model's own.
        candidates: for each example the candidates to score; None scores the natively generated tokens.
    Raises:
        InterfaceError: naming the example and both token sequences, or both likelihoods.
    """
    stops = set(stop_tokens(adapter) if stop_ids is None else stop_ids)
    joined_ids, joined_lengths = batch.joined()

    def generate(cache: MountedCache, ids: torch.Tensor, lengths: torch.Tensor) -> list[list[int]]:
        return [_through_stop(row, stops) for row in greedy(adapter, cache, ids, lengths, max_new_tokens).tokens]

    def logits_along(cache: MountedCache, ids: torch.Tensor, lengths: torch.Tensor, tokens: list[list[int]]) -> torch.Tensor:
        """Before each of the tokens: [batch, step, vocabulary]."""
        rows = [row[:length] + after[:-1] for row, length, after in zip(ids.tolist(), lengths.tolist(), tokens)]
        forced, totals = padded(rows)
        steps = torch.arange(max(map(len, tokens)))
        mark = cache.mark()
        logits = extend(adapter, cache, forced, totals, at=(lengths.cpu()[:, None] - 1 + steps).clamp(max=forced.shape[1] - 1)).float()
        cache.rewind(mark)
        return logits

    with mounted(adapter, None, batch.batch) as cache:
        native_tokens = generate(cache, joined_ids, joined_lengths)
        native_logits = logits_along(cache, joined_ids, joined_lengths, native_tokens)
        scored = [[tokens] for tokens in native_tokens] if candidates is None else candidates
        native_nll = candidate_nll(adapter, cache, joined_ids, joined_lengths, scored)
    with mounted(adapter, mount_everything(adapter, batch), batch.batch) as cache:
        mounted_tokens = generate(cache, batch.query_ids, batch.query_lengths)
        mounted_logits = logits_along(cache, batch.query_ids, batch.query_lengths, native_tokens)
        mounted_nll = candidate_nll(adapter, cache, batch.query_ids, batch.query_lengths, scored)
    best = native_logits[:, 0].topk(2, dim=-1).values
    margins = best[:, 0] - best[:, 1]
    difference = float((native_logits[:, 0] - mounted_logits[:, 0]).abs().max())
    rounding = TIE * torch.finfo(adapter.dtype).eps
    worst, ties = 0.0, 0
    for row in range(batch.batch):
        if native_tokens[row] != mounted_tokens[row]:
            step, native_id, mounted_id = _first_difference(native_tokens[row], mounted_tokens[row])
            logits = native_logits[row, step]
            margin = float(logits[native_id] - logits[mounted_id])
            ties += 1
            if not margin <= rounding * float(logits[native_id].abs()):
                raise InterfaceError(
                    f"example {row}: mounted at every position the target generates {mounted_tokens[row]}, natively {native_tokens[row]} "
                    f"(native margin where they part {margin:.3g}, largest logit difference {difference:.3g}). "
                    "Mounting does not reproduce the native run: check rotation, positions and stop ids of this model family."
                )
        for index, (native, mount) in enumerate(zip(native_nll[row], mounted_nll[row])):
            gap = abs(float(native.mean()) - float(mount.mean()))
            if not gap <= nll_tolerance:
                raise InterfaceError(
                    f"example {row}, candidate {index}: NLL {float(mount.mean()):.4f} mounted and {float(native.mean()):.4f} natively, "
                    f"apart by more than {nll_tolerance}. Mounting does not reproduce the native run of this model."
                )
            worst = max(worst, gap)
    return InterfaceReport(native_tokens, mounted_tokens, worst, difference, float(margins.min()), ties)


def _first_difference(one: list[int], other: list[int]) -> tuple[int, int, int]:
    """The first step at which two unequal rows differ, and the token of each there."""
    return next((step, a, b) for step, (a, b) in enumerate(zip(one, other)) if a != b)


def _through_stop(tokens: list[int], stops: set[int]) -> list[int]:
    """Tokens up to and including the first stop token."""
    ends = [place for place, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0] + 1] if ends else tokens
