"""The module: P parameters, exact counts per context length, gates that agree with the counts."""

from __future__ import annotations

import torch

from acct.allocator.allocator import Allocator
from acct.allocator.budget import BudgetRule


def test_it_has_one_parameter_for_each_unit_and_starts_uniform() -> None:
    allocator = Allocator(12)
    assert sum(p.numel() for p in allocator.parameters()) == 12
    counts = allocator.counts(torch.tensor([200]), BudgetRule(0.25, 8))
    assert counts.tolist() == [[42] * 12]


def test_counts_sum_to_the_budget_at_every_length_and_follow_the_preferences() -> None:
    allocator, rule = Allocator(6), BudgetRule(0.25, 8)
    lengths = torch.tensor([1, 8, 9, 50, 50, 301])
    before = allocator.counts(lengths, rule)
    with torch.no_grad():
        allocator.preferences.copy_(torch.linspace(-2, 2, 6))
    after = allocator.counts(lengths, rule)
    assert torch.equal(after.sum(1), 6 * (rule.mean_capacities(lengths) - rule.tails(lengths))) and torch.equal(after.sum(1), before.sum(1))
    assert after[5, 5] > after[5, 0] and torch.equal(after[3], after[4])
    allocator.preferences.data.neg_()  # a change that autograd's version counter does not see
    assert torch.equal(allocator.counts(lengths, rule)[5], after[5].flip(0))


def test_gates_agree_with_the_counts_and_carry_gradient_to_the_preferences() -> None:
    allocator, rule = Allocator(4), BudgetRule(0.3, 3)
    with torch.no_grad():
        allocator.preferences.copy_(torch.tensor([1.0, -1.0, 0.5, 0.0]))
    lengths = torch.tensor([20, 11, 2])
    ranks = torch.zeros(3, 4, 20, dtype=torch.int64)
    for row, length in enumerate(lengths.tolist()):
        for unit in range(4):
            prefix = max(length - 3, 0)
            ranks[row, unit, :prefix] = torch.randperm(prefix, generator=torch.Generator().manual_seed(unit))
    hard, log_gates = allocator.gates(ranks, lengths, rule)
    assert torch.equal(hard.sum(-1), allocator.counts(lengths, rule) + rule.tails(lengths)[:, None])
    for row, length in enumerate(lengths.tolist()):
        tail = int(rule.tails(lengths)[row])
        assert hard[row, :, length - tail : length].all() and not log_gates[row, :, length - tail : length].any()
        assert not hard[row, :, length:].any() and torch.isinf(log_gates[row, :, length:]).all()
        capacity = allocator.capacities(rule.resolve(length)).float()
        torch.testing.assert_close(log_gates[row, :, : length - tail].exp().sum(-1), capacity)
    log_gates[:, 1, 0][:2].sum().backward()
    assert allocator.preferences.grad is not None and allocator.preferences.grad[1] > 0
    assert abs(float(allocator.preferences.grad.sum())) < 1e-6
