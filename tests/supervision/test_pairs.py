"""Pairs: ordered, in their part, ties out, drawn in proportion, vectorised over heads of different sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acct.errors import ConfigError
from acct.supervision.pairs import sample_pairs


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1)), min_size=1, max_size=4), st.integers(1, 6), st.integers(0, 999))
def test_every_valid_pair_is_ordered_and_lies_in_its_part(sizes: list[tuple[int, float]], levels: int, seed: int) -> None:
    prefix = torch.tensor([n for n, _ in sizes])
    cutoffs = torch.tensor([round(n * share) for n, share in sizes])
    context = int(prefix.max()) + 3
    u = torch.randint(0, levels, (len(sizes), 2, context), generator=generator(seed)).float()  # many ties
    found = sample_pairs(u, prefix, cutoffs, generator(seed), band_minimum=4)
    assert found.winners.shape == found.losers.shape == found.valid.shape == (len(sizes), 2, 32)
    for b, (n, cut) in enumerate(zip(prefix.tolist(), cutoffs.tolist())):
        band = max(4, n // 8)
        for p in range(2):
            order = sorted(range(n), key=lambda i: (-float(u[b, p, i]), i))
            rank = {position: r for r, position in enumerate(order)}
            parts = [(range(cut), range(cut, n))] + [
                (part, part) for part in (range(max(cut - band, 0), cut), range(cut, min(cut + band, n)))
            ]
            for (tops, lows), where in zip(parts, (slice(0, 16), slice(16, 24), slice(24, 32))):
                possible = any(u[b, p, order[i]] > u[b, p, order[j]] for i in tops for j in lows)
                assert found.valid[b, p, where].tolist() == [possible] * (where.stop - where.start)
                if possible:
                    for i, j in zip(found.winners[b, p, where].tolist(), found.losers[b, p, where].tolist()):
                        assert u[b, p, i] > u[b, p, j] and rank[i] in tops and rank[j] in lows


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_straddling_winners_come_in_proportion_to_the_power_of_utility(power: float) -> None:
    u = torch.tensor([9.0, 4.0, 1.0, 0.5, 0.25, 0.1])
    found = sample_pairs(u.expand(400, 8, 6), torch.full((400,), 6), torch.full((400,), 3), generator(), power=power)
    seen = torch.bincount(found.winners[..., :16].flatten(), minlength=6)[:3].double()
    expected = u[:3].double() ** power
    torch.testing.assert_close(seen / seen.sum(), expected / expected.sum(), atol=0.01, rtol=0)
    losers = torch.bincount(found.losers[..., :16].flatten(), minlength=6)[3:].double()
    torch.testing.assert_close(losers / losers.sum(), torch.full((3,), 1 / 3, dtype=torch.float64), atol=0.01, rtol=0)


def test_pairs_inside_a_band_are_equally_likely() -> None:
    u = torch.tensor([9.0, 8.0, 7.0, 7.0, 1.0, 1.0, 0.5, 0.2])
    found = sample_pairs(u.expand(500, 8, 8), torch.full((500,), 8), torch.full((500,), 4), generator(1), band_minimum=4, band_fraction=0.0)
    codes = torch.bincount((found.winners * 8 + found.losers)[..., 16:24].flatten(), minlength=64)
    allowed = [0 * 8 + 1, 0 * 8 + 2, 0 * 8 + 3, 1 * 8 + 2, 1 * 8 + 3]  # 2 and 3 tie
    assert set(codes.nonzero().flatten().tolist()) == set(allowed)
    torch.testing.assert_close(codes[allowed] / codes.sum(), torch.full((5,), 0.2), atol=0.01, rtol=0)


def test_the_draw_follows_the_generator_only() -> None:
    u = torch.rand(2, 3, 50, generator=generator(5))
    draws = [sample_pairs(u, torch.tensor([50, 30]), torch.tensor([12, 8]), generator(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0].winners, draws[1].winners) and torch.equal(draws[0].losers, draws[1].losers)
    assert not torch.equal(draws[0].winners, draws[2].winners)


def test_heads_that_cannot_supply_pairs_are_masked_as_a_whole() -> None:
    u = torch.stack([torch.ones(20), torch.arange(20.0)])[None]
    found = sample_pairs(u, torch.tensor([20]), torch.tensor([5]), generator())
    assert not found.valid[0, 0].any() and found.valid[0, 1].all()
    assert not sample_pairs(u, torch.tensor([0]), torch.tensor([0]), generator()).valid.any()
    assert sample_pairs(torch.zeros(1, 2, 0), torch.tensor([0]), torch.tensor([0]), generator()).winners.shape == (1, 2, 32)


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 4 pairs"):
        sample_pairs(torch.ones(1, 1, 4), torch.tensor([4]), torch.tensor([2]), generator(), pairs=3)
