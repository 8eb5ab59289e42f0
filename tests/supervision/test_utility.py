"""Deletion utility against deleting, renormalising and subtracting."""

from __future__ import annotations

import pytest
import torch

from acct.errors import InputError
from acct.supervision.utility import deletion_utility
from tests.reference import utility as reference


def draw(sharp: float = 1.0, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """Two examples, 3 units, 2 query heads, histories of 11 and 8 with contexts of 7 and 5, rows of 4 and 3."""
    generator = torch.Generator().manual_seed(4)
    places = torch.tensor([[7, 8, 9, 10], [5, 6, 7, 0]])
    return {
        "queries": sharp * torch.randn(2, 3, 2, 4, 6, generator=generator, dtype=torch.float64).to(dtype),
        "row_valid": torch.tensor([[True] * 4, [True, True, True, False]]),
        "keys": torch.randn(2, 3, 11, 6, generator=generator, dtype=torch.float64).to(dtype),
        "values": torch.randn(2, 3, 11, 6, generator=generator, dtype=torch.float64).to(dtype) + 2,
        "visible": torch.arange(11) <= places[..., None],
        "context_lengths": torch.tensor([7, 5]),
    }


@pytest.mark.parametrize("sharp", [0.3, 1.0, 3.0])
def test_it_equals_removing_the_token_and_renormalising(sharp: float) -> None:
    given = draw(sharp)
    utilities = deletion_utility(**given, scaling=0.4, floor=0.0)
    for b, (rows, n) in enumerate([([7, 8, 9, 10], 7), ([5, 6, 7], 5)]):
        for p in range(3):
            slow = reference.deletion_utility(given["queries"][b, p], rows, given["keys"][b, p], given["values"][b, p], n, 0.4, 1e-6)
            torch.testing.assert_close(utilities[b, p, :n].double(), slow, rtol=1e-6, atol=1e-12)
        assert not utilities[b, :, n:].any()


@pytest.mark.parametrize("factor", [2.0, 5.0, 30.0])
def test_a_token_that_takes_nearly_all_attention_has_an_exact_utility(factor: float) -> None:
    given = draw(dtype=torch.float32)
    given["keys"][0, 0, 3] = factor * given["queries"][0, 0, 0, 0]
    utilities = deletion_utility(**given, scaling=0.4, floor=0.0)
    slow = reference.deletion_utility(given["queries"][0, 0], [7, 8, 9, 10], given["keys"][0, 0], given["values"][0, 0], 7, 0.4, 1e-6)
    torch.testing.assert_close(utilities[0, 0, :7].double(), slow, rtol=1e-6, atol=1e-12)


def test_the_floor_scales_a_dominant_tokens_change() -> None:
    given = {
        "queries": torch.ones(1, 1, 1, 1, 1), "row_valid": torch.tensor([[True]]), "visible": torch.ones(1, 1, 2, dtype=torch.bool),
        "keys": torch.tensor([0.0, -20.0]).view(1, 1, 2, 1), "values": torch.tensor([1.0, 3.0]).view(1, 1, 2, 1),
        "context_lengths": torch.tensor([1]),
    }  # fmt: skip
    left = 1 / (1 + torch.tensor(20.0, dtype=torch.float64).exp())
    exact = float((2 * (1 - left)) ** 2 / (1 + 2 * left) ** 2 / (1 + 1e-6))
    assert float(deletion_utility(**given, scaling=1.0, floor=0.0)) == pytest.approx(exact, rel=1e-6)
    assert float(deletion_utility(**given, scaling=1.0, floor=1e-4)) == pytest.approx(exact * float(left / 1e-4) ** 2, rel=1e-6)


def test_a_row_on_one_token_stays_finite_by_the_floor() -> None:
    given = draw()
    given["queries"] = given["queries"] * 1e4
    utilities = deletion_utility(**given, scaling=0.4, floor=1e-4)
    assert torch.isfinite(utilities).all() and (utilities >= 0).all()


def test_invalid_rows_padding_and_blocks_change_nothing() -> None:
    given = draw()
    expected = deletion_utility(**given, scaling=0.4)
    changed = {name: value.clone() for name, value in given.items()}
    changed["queries"][1, :, :, 3] = 50.0
    changed["keys"][1, :, 8:], changed["values"][1, :, 8:] = 7.0, -9.0
    changed["visible"][1, 3] = False
    torch.testing.assert_close(deletion_utility(**changed, scaling=0.4), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(deletion_utility(**given, scaling=0.4, block=1), expected, rtol=1e-6, atol=0)
    wide = deletion_utility(**given, scaling=0.4, context=9)
    assert wide.shape == (2, 3, 9) and not wide[..., 7:].any()


def test_an_example_without_rows_is_refused() -> None:
    given = draw()
    given["row_valid"][1] = False
    with pytest.raises(InputError, match="example 1 has no attention row"):
        deletion_utility(**given, scaling=0.4)
