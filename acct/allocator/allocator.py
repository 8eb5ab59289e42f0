"""The Allocator: P learned preferences and nothing else (spec 3). Counts depend on (N, rho, tau) only, never on the tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acct.allocator.budget import Budget, BudgetRule, capacities, round_capacities
from acct.allocator.gates import soft_rank_gates


class Allocator(nn.Module):
    """Preferences alpha of the target units, zero at first: every unit keeps the same.

    Args:
        units: P. The module has exactly P parameters.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units
        self.preferences = nn.Parameter(torch.zeros(units))  # [unit]
        self._counted_for = torch.full((units,), torch.nan)  # preferences that the cached counts belong to
        self._counts: dict[Budget, Tensor] = {}

    def capacities(self, budget: Budget) -> Tensor:
        """Real capacities of the ranked prefix: float64 [unit], summing to B, differentiable in the preferences."""
        return capacities(self.preferences, budget.prefix, budget.prefix_budget(self.units))

    def counts(self, context_lengths: Tensor, rule: BudgetRule) -> Tensor:
        """Ranked slots of every unit, the tail not included: int64 [batch, unit] on the device of `context_lengths`.

        Each example's row sums to exactly P (k - t). Computed once for each context length until the preferences change.
        """
        now = self.preferences.detach().cpu()
        if not torch.equal(now, self._counted_for):
            self._counts, self._counted_for = {}, now.clone()
        rows = []
        for length in context_lengths.tolist():
            budget = rule.resolve(length)
            if budget not in self._counts:
                with torch.no_grad():
                    total = budget.prefix_budget(self.units)
                    self._counts[budget] = round_capacities(capacities(now, budget.prefix, total), budget.prefix, total)
            rows.append(self._counts[budget])
        return torch.stack(rows).to(context_lengths.device)

    def gates(self, ranks: Tensor, context_lengths: Tensor, rule: BudgetRule, temperature: float = 2.0) -> tuple[Tensor, Tensor]:
        """Hard selection and soft log-gates of a batch, as GatedKV wants them: a biased surrogate, see `acct.allocator.gates`.

        Args:
            ranks: int64 [batch, unit, context], from `acct.cartographer.ranks_of`; read at the n prefix positions only.
        Returns:
            hard: bool [batch, unit, context], the integer counts' top ranks and the tail.
            log_gates: float32 [batch, unit, context], zero at the tail, -inf at padding, with gradient to the preferences.
        """
        lengths = context_lengths.to(ranks.device)
        tails = rule.tails(lengths)
        place = torch.arange(ranks.shape[-1], device=ranks.device)
        prefix = (place < (lengths - tails)[:, None])[:, None]  # [batch, 1, context]
        tail = (place < lengths[:, None])[:, None] & ~prefix
        by_length = {length: self.capacities(rule.resolve(length)) for length in set(lengths.tolist())}
        capacity = torch.stack([by_length[length] for length in lengths.tolist()]).to(ranks.device)  # [batch, unit]
        log_gates, _ = soft_rank_gates(capacity, ranks, temperature, prefix)
        hard = (prefix & (ranks < self.counts(lengths, rule)[..., None])) | tail
        return hard, log_gates.to(torch.float32).masked_fill(tail, 0.0)
