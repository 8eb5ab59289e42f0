"""The pair loss against a loop; its invariances; degenerate heads."""

from __future__ import annotations

import math

import torch

from acct.losses.scoring import scoring_loss
from acct.supervision.pairs import Pairs, sample_pairs


def draw() -> tuple[torch.Tensor, Pairs, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    prefix = torch.tensor([20, 13])
    pairs = sample_pairs(torch.rand(2, 3, 24, generator=generator), prefix, torch.tensor([6, 4]), generator)
    return torch.randn(2, 3, 24, generator=generator, dtype=torch.float64), pairs, prefix


def test_it_equals_a_loop_over_pairs_and_has_the_right_gradient() -> None:
    scores, pairs, prefix = draw()
    total, count = 0.0, 0
    for b, n in enumerate(prefix.tolist()):
        for p in range(3):
            s = scores[b, p, :n]
            deviation = math.sqrt(float(((s - s.mean()) ** 2).mean()))
            for i, j, ok in zip(pairs.winners[b, p].tolist(), pairs.losers[b, p].tolist(), pairs.valid[b, p].tolist()):
                if ok:
                    total += math.log1p(math.exp(-float(s[i] - s[j]) / (deviation + 1e-6)))
                    count += 1
    assert count == 2 * 3 * 32
    assert abs(float(scoring_loss(scores, pairs, prefix)) - total / count) < 1e-12
    assert torch.autograd.gradcheck(lambda s: scoring_loss(s, pairs, prefix), (scores.requires_grad_(),))


def test_larger_scores_gain_nothing_and_tail_and_padding_do_not_count() -> None:
    scores, pairs, prefix = draw()
    loss = scoring_loss(scores, pairs, prefix)
    torch.testing.assert_close(scoring_loss(1000 * scores + 5, pairs, prefix), loss, rtol=1e-5, atol=0)
    changed = scores.clone()
    changed[0, :, 20:], changed[1, :, 13:] = 1e6, -1e6
    torch.testing.assert_close(scoring_loss(changed, pairs, prefix), loss)


def test_equal_scores_and_no_valid_pair_give_finite_gradients() -> None:
    scores, pairs, prefix = draw()
    flat = torch.full_like(scores, 2.0, requires_grad=True)
    loss = scoring_loss(flat, pairs, prefix)
    loss.backward()
    assert abs(float(loss.detach()) - math.log(2)) < 1e-12 and flat.grad is not None and torch.isfinite(flat.grad).all()
    none = Pairs(pairs.winners, pairs.losers, torch.zeros_like(pairs.valid))
    free = scores.clone().requires_grad_()
    loss = scoring_loss(free, none, prefix)
    loss.backward()
    assert float(loss.detach()) == 0 and free.grad is not None and not free.grad.any()
