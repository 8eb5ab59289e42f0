"""Soft rank gates against SciPy's root; the implicit gradient; boundaries; stability."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acct.allocator.gates import soft_rank_gates
from acct.errors import ConfigError
from tests.reference.allocator import gates_by_root


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 120), st.floats(0, 1, allow_subnormal=False), st.floats(0.2, 9), st.integers(0, 99))
def test_gates_equal_the_root_and_sum_to_the_capacity(prefix: int, share: float, temperature: float, seed: int) -> None:
    ranks = torch.randperm(prefix, generator=torch.Generator().manual_seed(seed))
    capacity = share * prefix
    log_gates, gates = soft_rank_gates(torch.tensor([capacity], dtype=torch.float64), ranks[None], temperature)
    assert float(gates.sum()) == pytest.approx(capacity, abs=1e-10 * prefix)
    np.testing.assert_allclose(gates[0].numpy(), gates_by_root(capacity, ranks.numpy(), temperature), atol=1e-9)
    np.testing.assert_allclose(log_gates.exp().numpy(), gates.numpy(), rtol=1e-10, atol=1e-290)


@pytest.mark.parametrize("capacity", [1e-12, 1e-3, 1.0, 37.4, 74.0, 74.999, 75 - 1e-9])
def test_capacities_close_to_a_boundary_are_met(capacity: float) -> None:
    log_gates, gates = soft_rank_gates(torch.tensor([capacity], dtype=torch.float64), torch.arange(75)[None])
    assert float(gates.sum()) == pytest.approx(capacity, rel=1e-12)
    assert torch.isfinite(log_gates).all() and (log_gates.diff() < 0).any()


@pytest.mark.parametrize("temperature", [0.7, 2.0, 5.0])
def test_gradients_of_gates_and_of_log_gates_equal_differences(temperature: float) -> None:
    ranks = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(s)) for s in range(6)]).view(2, 3, 12)
    capacity = torch.tensor([[0.4, 3.0, 11.5], [6.2, 8.8, 1.0]], dtype=torch.float64, requires_grad=True)
    valid = torch.ones(2, 1, 12, dtype=torch.bool)
    for output in (0, 1):
        assert torch.autograd.gradcheck(
            lambda b, o=output: soft_rank_gates(b, ranks, temperature, valid)[o], (capacity,), eps=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("temperature", [0.5, 2.0, 8.0])
def test_temperature_cancels_in_the_closed_form_of_the_gradient(temperature: float) -> None:
    capacity = torch.tensor([9.3], dtype=torch.float64, requires_grad=True)
    _, gates = soft_rank_gates(capacity, torch.arange(40)[None], temperature)
    upstream = torch.randn(1, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(gates, capacity, upstream)
    slope = (gates * (1 - gates)).detach()
    torch.testing.assert_close(gradient, (upstream * slope).sum(-1) / slope.sum(-1))
    (total,) = torch.autograd.grad(soft_rank_gates(capacity, torch.arange(40)[None], temperature)[1].sum(), capacity)
    assert float(total) == pytest.approx(1.0)  # the gates sum to b


def test_boundaries_give_zeros_and_ones_with_zero_gradient() -> None:
    capacity = torch.tensor([0.0, 7.0, 3.0], requires_grad=True)
    log_gates, gates = soft_rank_gates(capacity, torch.arange(7).expand(3, 7))
    assert gates[0].tolist() == [0.0] * 7 and gates[1].tolist() == [1.0] * 7
    assert log_gates[0].tolist() == [-torch.inf] * 7 and log_gates[1].tolist() == [0.0] * 7
    (gradient,) = torch.autograd.grad((gates * torch.arange(7)).sum() + log_gates[1:].sum(), capacity)
    assert gradient[:2].tolist() == [0.0, 0.0] and torch.isfinite(gradient).all() and gradient[2] != 0


def test_padding_has_no_share_and_rows_do_not_see_each_other() -> None:
    ranks = torch.stack([torch.arange(9), torch.tensor([4, 3, 2, 1, 0, 77, 99, 5, 1])])[:, None].expand(2, 2, 9)
    valid = torch.tensor([[True] * 9, [True] * 5 + [False] * 4])[:, None]
    capacity = torch.tensor([[4.5, 2.0], [3.1, 5.0]], dtype=torch.float64, requires_grad=True)
    log_gates, gates = soft_rank_gates(capacity, ranks, valid=valid)
    alone, _ = soft_rank_gates(capacity[1:, :1], ranks[1:, :1, :5])
    torch.testing.assert_close(log_gates[1, 0, :5], alone[0, 0])
    assert not gates[1, :, 5:].any() and torch.isinf(log_gates[1, :, 5:]).all()
    torch.testing.assert_close(gates.sum(-1), capacity)
    (gradient,) = torch.autograd.grad(torch.softmax(log_gates, dim=-1)[..., 0].sum(), capacity)
    assert torch.isfinite(gradient).all()


def test_an_empty_prefix_has_no_gates() -> None:
    log_gates, gates = soft_rank_gates(torch.zeros(2, 3), torch.zeros(2, 3, 0, dtype=torch.int64))
    assert log_gates.shape == gates.shape == (2, 3, 0)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        soft_rank_gates(torch.zeros(1), torch.zeros(1, 1), 0.0)
