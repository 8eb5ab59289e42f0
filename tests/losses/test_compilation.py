"""The five terms of the Compilation loss against their slow twins: values and gradients, at the edges too."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from acct.losses import compilation
from acct.losses.compilation import CompilationWeights, attention, attention_teacher, behaviour, geometry, last_rows
from acct.selection import batch_index, gather_native
from acct.types import SparseKV
from tests.compiler.states import Batch, draw
from tests.reference import compilation as reference

SCALING = 0.37


def rotate(x: Tensor, positions: Tensor, total_lengths: Tensor) -> Tensor:
    """A rotation whose frequencies depend on the total length, as dynamic RoPE's do."""
    half = x.shape[-1] // 2
    base = 50.0 + total_lengths[..., None].double()
    angles = positions[..., None] * base ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


def compiled(batch: Batch, seed: int, distance: float = 0.8) -> tuple[Tensor, Tensor]:
    """Native keys and values at the slots, disturbed, requiring gradients."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = (
        x + distance * torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in gather_native(batch.selection, batch.native)
    )
    return keys.requires_grad_(), values.requires_grad_()


def rotated(keys: Tensor, batch: Batch) -> Tensor:
    totals = (batch.native.context_lengths + batch.native.query_lengths)[batch_index(batch.selection)]
    return rotate(keys, batch.selection.positions, totals)


def assert_equal(got: Tensor, expected: Tensor, x: Tensor, tolerance: float = 1e-11) -> None:
    """Equal values and equal gradients with respect to x, under an upstream factor."""
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    a, b = (torch.autograd.grad(-1.7 * y, x, retain_graph=True)[0] for y in (got, expected))
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 3))
def test_geometry_terms_equal_their_twins(seed: int, contexts: list[int], tail: int) -> None:
    batch = draw(seed, contexts, [3] * len(contexts), tail, empty=(2, 7), dtype=torch.float64)
    if not len(batch.selection.positions):
        return
    keys, values = compiled(batch, seed)
    native_keys, native_values = gather_native(batch.selection, batch.native)
    for name, x, native in (("key_direction", keys, native_keys), ("key_scale", keys, native_keys), ("value", values, native_values)):
        got = getattr(compilation, name)(x, native, batch.selection)
        assert_equal(got, getattr(reference, name)(x, native, batch.selection), x)
        together = geometry(SparseKV(batch.selection, keys, values, False), batch.native)[name]
        torch.testing.assert_close(together, got)
        weights = compilation.slot_weights(batch.selection, torch.float64)
        assert torch.equal(getattr(compilation, name)(x, native, batch.selection, 1e-6, weights), got)


def test_zero_vectors_stay_finite_and_epsilon_acts_as_specified() -> None:
    batch = draw(1, (6, 3), (2, 2), dtype=torch.float64)
    native_keys, _ = gather_native(batch.selection, batch.native)
    keys = native_keys.clone()
    keys[0] = 0
    keys[1] *= 1e-9
    native_keys[2] = 0
    keys.requires_grad_()
    for name in ("key_direction", "key_scale", "value"):
        got, expected = (getattr(where, name)(keys, native_keys, batch.selection, 1e-3) for where in (compilation, reference))
        torch.testing.assert_close(got, expected)
        gradient = torch.autograd.grad(got, keys)[0]
        assert bool(torch.isfinite(gradient).all())
    one = draw(0, (1,), (1,), tail=1).selection
    parallel = compilation.key_direction(native_keys[3:12], 5 * native_keys[3:12], one)
    assert abs(float(parallel)) < 1e-12  # a floor of the norm, not a sum with it


def test_equal_states_cost_nothing_and_examples_weigh_the_same() -> None:
    batch = draw(4, (40, 3), (2, 2), dtype=torch.float64)
    keys, values = gather_native(batch.selection, batch.native)
    assert all(abs(float(x)) < 1e-12 for x in geometry(SparseKV(batch.selection, keys, values, False), batch.native).values())
    short = batch_index(batch.selection) == 1
    opposite = torch.where(short[:, None], -keys, keys)
    torch.testing.assert_close(float(compilation.key_direction(opposite, keys, batch.selection)), 1.0)  # mean of 2 and 0


@pytest.mark.parametrize(
    ("contexts", "queries", "tail", "empty", "positions"),
    [((7, 2, 11), (4, 7, 3), 3, (4,), 5), ((5,), (1,), 0, (0, 1, 2), 32), ((1, 9), (6, 2), 2, (), 1), ((3, 3), (3, 5), 0, range(9), 4)],
)
def test_attention_equals_the_twin(
    contexts: tuple[int, ...], queries: tuple[int, ...], tail: int, empty: tuple[int, ...], positions: int
) -> None:
    batch = draw(5, contexts, queries, tail, empty, dtype=torch.float64, extra=2)
    keys, _ = compiled(batch, 1)
    teacher = attention_teacher(rotate, batch.native, batch.selection, SCALING, positions)
    got = attention(rotated(keys, batch), teacher, batch.selection)
    expected = reference.attention(keys, batch.native, batch.selection, rotate, SCALING, positions)
    if not len(keys):
        assert float(got.detach()) == float(expected.detach()) == 0
        return
    assert_equal(got, expected, keys)
    assert float(got.detach()) > 0
    native, _ = gather_native(batch.selection, batch.native)
    assert abs(float(attention(rotated(native, batch), teacher, batch.selection))) < 1e-12


def test_attention_gradient_passes_gradcheck_and_is_kept_only_when_needed() -> None:
    batch = draw(6, (4, 3), (2, 3), dtype=torch.float64)
    keys, _ = compiled(batch, 2, 0.3)
    teacher = attention_teacher(rotate, batch.native, batch.selection, SCALING, 2)
    assert torch.autograd.gradcheck(lambda k: attention(rotated(k, batch), teacher, batch.selection), (keys,), fast_mode=True)
    assert not attention(rotated(keys.detach(), batch), teacher, batch.selection).requires_grad


def test_attention_stays_finite_in_float32_at_large_logits() -> None:
    batch = draw(7, (9, 5), (4, 3))
    keys, _ = compiled(batch, 3, 1.0)
    teacher = attention_teacher(rotate, batch.native, batch.selection, 300.0)
    loss = attention(rotated(keys, batch), teacher, batch.selection)
    gradient = torch.autograd.grad(loss, keys)[0]
    assert math.isfinite(float(loss.detach())) and bool(torch.isfinite(gradient).all())


def test_behaviour_equals_the_twin() -> None:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([5, 1, 9])
    student = torch.randn(3, 11, 13, generator=generator, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(3, 11, 13, generator=generator, dtype=torch.float64).requires_grad_()
    for positions in (1, 4, 8, 20):
        got = behaviour(student, teacher, lengths, positions)
        assert_equal(got, reference.behaviour(student, teacher.detach(), lengths, positions), student)
        assert torch.autograd.grad(got, teacher, allow_unused=True)[0] is None
    gradient = torch.autograd.grad(behaviour(student, teacher, lengths, 4), student)[0]
    assert not gradient[0, :1].any() and not gradient[0, 5:].any() and gradient[2, 5:9].any()


def test_last_rows_are_the_last_and_ascending() -> None:
    index, valid = last_rows(torch.tensor([5, 2, 3]), 3)
    assert index.tolist() == [[2, 3, 4], [0, 1, 0], [0, 1, 2]] and valid.tolist() == [[True] * 3, [True, True, False], [True] * 3]


def test_weights_sum_the_terms_and_leave_out_what_weighs_nothing() -> None:
    values = {"key_direction": 1.0, "key_scale": 20000.0, "value": 3.0, "attention": 4.0}
    terms = {name: torch.tensor(value) for name, value in values.items()}
    assert float(CompilationWeights(behaviour=0).total(terms)) == pytest.approx(10)
    with pytest.raises(KeyError):
        CompilationWeights().total(terms)
