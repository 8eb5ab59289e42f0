"""RoPE: inverse, frequencies against a float64 twin, and settings that are missing or were changed (cases row 4)."""

from __future__ import annotations

import pytest
import torch

from acct.errors import ModelError
from acct.models.registry import adapter_for
from tests.tiny import FAMILIES, NATIVE_WINDOW, ROPE_KINDS, tiny_model
from tests.tolerances import UNROTATION


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rope", ROPE_KINDS)
def test_unrotate_then_rotate_is_the_identity(family: str, rope: str) -> None:
    adapter = adapter_for(tiny_model(family, size="target", rope=rope))
    keys = 3.0 * torch.randn(2, 3, 50, 16, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(7, 57)
    assert (adapter.unrotate(adapter.rotate(keys, positions), positions) - keys).abs().max() <= UNROTATION
    assert (adapter.rotate(adapter.unrotate(keys, positions), positions) - keys).abs().max() <= UNROTATION
    rows = torch.stack([positions, positions + 30])[:, None]  # [batch, 1, seq]
    both = adapter.rotate(keys, rows)
    assert torch.equal(both[0], adapter.rotate(keys[0], positions)) and torch.equal(both[1], adapter.rotate(keys[1], positions + 30))
    assert adapter.rotate(keys[0, 0, :0], positions[:0]).shape == (0, 16)


def test_default_rotation_by_hand() -> None:
    adapter = adapter_for(tiny_model("llama"))
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    positions = torch.tensor([0, 3, 3, 100, 9])
    angle = positions[:, None].double() / 500.0 ** (torch.arange(4, dtype=torch.float64) / 4)
    as_complex = torch.complex(x[:, :4], x[:, 4:]) * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat([as_complex.real, as_complex.imag], dim=-1)
    assert (adapter.rotate(x.float(), positions) - expected).abs().max() < 1e-5


def test_yarn_scaling_is_part_of_the_rotation() -> None:
    adapter = adapter_for(tiny_model("qwen3", rope="yarn"))
    assert adapter.rotary.scaling > 1.1
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
    norms = adapter.rotate(x, torch.arange(6)).norm(dim=-1) / x.norm(dim=-1)
    assert torch.allclose(norms, torch.full((6,), adapter.rotary.scaling), atol=1e-5)


def test_dynamic_frequencies_depend_on_the_total_length() -> None:
    adapter = adapter_for(tiny_model("llama", rope="dynamic"))
    x, positions = torch.ones(2, 4, 8), torch.arange(4)
    inside = adapter.rotate(x, positions, NATIVE_WINDOW)
    assert torch.equal(inside, adapter.rotate(x, positions))  # a short run keeps the native frequencies
    rows = adapter.rotate(x, positions, torch.tensor([[NATIVE_WINDOW], [3 * NATIVE_WINDOW]]))
    assert torch.equal(rows[0], inside[0]) and not torch.allclose(rows[1], inside[1], atol=1e-2)
    assert torch.equal(rows[1], adapter.rotate(x[1], positions, 3 * NATIVE_WINDOW))


def test_missing_theta_is_an_error() -> None:
    model = tiny_model("qwen3")
    del model.config.rope_parameters["rope_theta"]
    with pytest.raises(ModelError, match="must state a positive rope_theta"):
        adapter_for(model)


def test_theta_that_moved_after_building_is_an_error() -> None:
    model = tiny_model("llama")
    model.config.rope_parameters["rope_theta"] = 10000.0
    with pytest.raises(ModelError, match="does not hold the frequencies of 'default' RoPE with theta 10000"):
        adapter_for(model)


def test_a_cast_that_rounds_the_frequencies_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"must be float32, got torch\.bfloat16"):
        adapter_for(tiny_model("llama").to(torch.bfloat16))


def test_unknown_rope_kind_is_an_error() -> None:
    model = tiny_model("llama")
    model.config.rope_parameters["rope_type"] = "longrope"
    with pytest.raises(ModelError, match="'longrope' is not supported"):
        adapter_for(model)


def test_gradient_flows_through_the_rotation() -> None:
    adapter = adapter_for(tiny_model("llama", rope="dynamic"))
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3), requires_grad=True)
    adapter.rotate(x, torch.arange(4)).pow(2).sum().backward()
    assert torch.allclose(x.grad, 2 * x.detach(), atol=1e-5)  # a rotation keeps the norm
