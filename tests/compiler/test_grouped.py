"""Grouping by unit against a loop over slots, whatever the counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acct.compiler.grouped import UnitGroups
from acct.selection import unit_index
from tests.compiler.states import draw


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 14), min_size=1, max_size=4),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.sampled_from([1, 20, 10**6]),
)
def test_linear_equals_a_loop_over_slots(seed: int, contexts: list[int], tail: int, waste: float, largest: int) -> None:
    selection = draw(seed, contexts, [2] * len(contexts), tail, empty=(1, 5)).selection
    unit = unit_index(selection)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    own, shared = normal(len(unit), 3), normal(7, 2)
    row = torch.randint(0, 7, (len(unit),), generator=generator)
    first, second, bias = normal(selection.units, 3, 5), normal(selection.units, 2, 5), normal(selection.units, 5)
    groups = UnitGroups.of(selection, waste, largest)
    result = groups.linear([(own, None, first), (shared, row, second)], bias)
    expected = torch.einsum("si,sio->so", own, first[unit]) + torch.einsum("si,sio->so", shared[row], second[unit]) + bias[unit]
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    weight = torch.randn(result.shape, generator=generator, dtype=torch.float64)
    inputs = (own, shared, first, second, bias)
    if len(unit):
        got = torch.autograd.grad((result * weight).sum(), inputs)
        for a, b in zip(got, torch.autograd.grad((expected * weight).sum(), inputs)):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert torch.equal(groups.counts, torch.bincount(unit, minlength=selection.units))


def test_padding_stays_below_the_waste_however_unequal_the_units() -> None:
    selection = draw(3, (400, 90), (1, 1), tail=2).selection
    groups = UnitGroups.of(selection, waste=0.25)
    places = sum(block.valid.numel() for block in groups.blocks)
    assert places <= len(selection.positions) / 0.75
    assert places < selection.units * int(groups.counts.max())


def test_no_slot_at_all_gives_an_empty_result() -> None:
    selection = draw(0, (1, 2), (1, 1), tail=0, empty=range(9)).selection
    groups = UnitGroups.of(selection)
    assert groups.linear([(torch.zeros(0, 3), None, torch.zeros(9, 3, 4))], torch.zeros(9, 4)).shape == (0, 4)
    with pytest.raises(AssertionError):
        UnitGroups.of(draw(0).selection).linear([])
