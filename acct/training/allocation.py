"""Second stage: the Allocator learns which units deserve the budget, on native target states (spec 3, 5; paper B.2).

The Cartographer is frozen. The target's own keys and values are mounted under the hard selection, and the gradient of the answer's NLL
reaches the preferences through the soft rank gates: a biased surrogate. Answers are read by the target's loss and never by the source.
"""

from __future__ import annotations

import torch
from torch import Tensor

from acct.allocator.allocator import Allocator
from acct.cache import extend, mounted
from acct.cartographer import ranks_of
from acct.data.batches import padded
from acct.losses.allocation import answer_nll, output_kl
from acct.pipeline import Interface, rank
from acct.training.loop import Terms
from acct.training.selections import batches_of
from acct.training.session import Examples, Session
from acct.types import GatedKV, TokenBatch


class AllocationTask:
    """The loss over batches of one list of examples.

    Args:
        interface: holds the frozen Cartographer (or random orders). allocator: trained in place.
    """

    def __init__(self, session: Session, examples: Examples, interface: Interface, allocator: Allocator):
        self.session, self.examples, self.interface, self.allocator = session, examples, interface, allocator
        self.settings = session.config.allocator

    def _gated(self, batch: TokenBatch) -> GatedKV:
        """Native states of the whole context under the gates of the present preferences."""
        target = self.session.pair.target
        with torch.no_grad():
            states = self.session.read_source(batch).to(self.session.device)
            ranks = ranks_of(rank(self.interface, self.session.pair.geometry, states))
            native = self.session.states.native(target, batch)
            totals = (native.context_lengths + native.query_lengths)[:, None, None]
            place = torch.arange(native.context_keys_pre.shape[2], device=target.device)
            keys = target.rotate(native.context_keys_pre, place, totals)
        hard, log_gates = self.allocator.gates(ranks, states.context_lengths, self.session.rule, self.settings.temperature)
        return GatedKV(native.context_lengths, keys, native.context_values, hard.to(target.device), log_gates.to(target.device))

    def _answer_logits(self, context: GatedKV | None, query: tuple[Tensor, Tensor], answers: list[list[int]]) -> Tensor:
        """Logits that predict each answer token: [batch, answer, vocabulary]; `query` are padded ids and lengths."""
        target, (query_ids, query_lengths) = self.session.pair.target, query
        rows = [
            [*ids[:length], *answer[:-1]] for ids, length, answer in zip(query_ids.tolist(), query_lengths.tolist(), answers)
        ]  # the last answer token predicts nothing that is scored
        ids, lengths = padded(rows)
        width = max(map(len, answers))
        at = (query_lengths[:, None] - 1 + torch.arange(width)).clamp(max=ids.shape[1] - 1)
        with mounted(target, context, len(rows)) as cache:
            return extend(target, cache, ids, lengths, at=at)

    def __call__(self, indices: list[int], step: int = 0) -> tuple[Tensor, Terms]:
        """Loss of a batch, for `acct.training.loop.fit`."""
        batch = self.examples.batch(indices)
        answers = self.examples.answers(indices, self.settings.answer_tokens)
        answer_ids, answer_lengths = padded(answers)
        mask = torch.arange(answer_ids.shape[1]) < answer_lengths[:, None]
        logits = self._answer_logits(self._gated(batch), (batch.query_ids, batch.query_lengths), answers)
        loss = answer_nll(logits, answer_ids.to(logits.device), mask.to(logits.device))
        terms = {"answer_nll": float(loss.detach())}
        if self.settings.output_kl_weight > 0:
            with torch.no_grad():
                teacher = self._answer_logits(None, batch.joined(), answers)
            divergence = output_kl(teacher, logits, mask.to(logits.device))
            terms["output_kl"] = float(divergence.detach())
            loss = loss + self.settings.output_kl_weight * divergence
        return loss, terms

    @torch.no_grad()
    def measure(self, batch: int) -> Terms:
        """Mean terms over all examples."""
        totals: dict[str, float] = {}
        for indices in batches_of(len(self.examples), batch, self.examples.lengths()):
            _, terms = self(indices)
            for name, term in terms.items():
                totals[name] = totals.get(name, 0.0) + term * len(indices) / len(self.examples)
        return totals
