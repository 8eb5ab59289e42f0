"""Joint and gated attention against the slow float64 twin: values, gradients, masks, kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from acct.attention import (
    IMPLEMENTATION,
    acct_attention,
    gated_attention,
    joint_attention,
    joint_mask,
    native_mask,
    register_attention,
)
from acct.errors import ModelError
from acct.mounted_context import SlotIndex, join
from tests import tolerances
from tests.reference import attention as reference
from tests.tiny import tiny_model

SCALING = 0.3


def make_inputs(seed: int, batch: int, heads: int, group: int, slots: int, native: int, queries: int, dim: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    lengths = torch.randint(0, native + 1, (batch,), generator=generator)
    lengths[0] = 0  # a row without any native token but padding
    return {
        "query": normal(batch, heads * group, queries, dim),
        "keys": normal(batch, heads, slots + native, dim),
        "values": normal(batch, heads, slots + native, dim),
        "context_valid": torch.rand(batch, heads, slots, generator=generator) < 0.6,
        "native_valid": torch.arange(native) < lengths[:, None],
        "log_gates": normal(batch, heads, slots),
        "weights": torch.randn(batch, heads * group, queries, dim, generator=generator, dtype=torch.float64),
    }


SHAPES = [(2, 3, 2, 7, 5, 3, 4), (3, 1, 4, 5, 4, 1, 8), (1, 2, 1, 0, 6, 6, 4), (2, 2, 3, 9, 2, 2, 16)]


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_equal_the_slow_reference(shape: tuple[int, ...]) -> None:
    inputs = make_inputs(1, *shape)
    slots = shape[3]
    inputs["context_valid"][0, 0] = False  # a unit with no slot at all
    allowed = joint_mask(inputs["context_valid"], native_mask(inputs["native_valid"], shape[5]))
    leaves = [inputs["query"], inputs["keys"], inputs["values"]]
    out = joint_attention(*leaves, allowed, SCALING)
    context = [
        [tuple(t[b, h, :slots][inputs["context_valid"][b, h]] for t in leaves[1:]) for h in range(shape[1])] for b in range(shape[0])
    ]
    expected = reference.attention(
        inputs["query"], context, inputs["keys"][:, :, slots:], inputs["values"][:, :, slots:], inputs["native_valid"], SCALING
    )
    torch.testing.assert_close(out, expected, atol=tolerances.ATTENTION_FLOAT64, rtol=0)
    got = torch.autograd.grad((out * inputs["weights"]).sum(), leaves)
    wanted = torch.autograd.grad((expected * inputs["weights"]).sum(), leaves)
    for one, other in zip(got, wanted):
        torch.testing.assert_close(one, other, atol=tolerances.ATTENTION_FLOAT64, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_gates_give_the_hard_value_and_the_soft_gradient(shape: tuple[int, ...]) -> None:
    inputs = make_inputs(2, *shape)
    closed = torch.zeros_like(inputs["context_valid"])
    closed[..., ::3] = True  # g = 0: log g is -inf
    log_gates = inputs["log_gates"].masked_fill(closed, float("-inf"))
    hard = inputs["context_valid"] & ~closed
    leaves = [inputs["query"], inputs["keys"], inputs["values"], inputs["log_gates"]]
    allowed = native_mask(inputs["native_valid"], shape[5])
    out = gated_attention(*leaves[:3], hard, log_gates, allowed, SCALING)
    chosen, soft = reference.gated_attention(*leaves[:3], hard, log_gates, inputs["native_valid"], SCALING)
    torch.testing.assert_close(out, chosen, atol=tolerances.ATTENTION_FLOAT64, rtol=0)
    assert torch.equal(out, joint_attention(*leaves[:3], joint_mask(hard, allowed), SCALING))
    with torch.no_grad():
        assert torch.equal(out, gated_attention(*leaves[:3], hard, log_gates, allowed, SCALING))
    got = torch.autograd.grad((out * inputs["weights"]).sum(), leaves, allow_unused=True, retain_graph=True)
    surrogate = soft + (chosen - soft).detach()
    wanted = torch.autograd.grad((surrogate * inputs["weights"]).sum(), leaves, allow_unused=True)
    for one, other in zip(got, wanted):
        if other is not None:
            assert bool(torch.isfinite(one).all())
            torch.testing.assert_close(one, other, atol=tolerances.ATTENTION_FLOAT64, rtol=0)


def test_gate_gradient_agrees_with_finite_differences_of_the_soft_output() -> None:
    inputs = make_inputs(3, 2, 2, 2, 4, 3, 2, 4)
    fixed = [inputs[name].detach() for name in ("query", "keys", "values")]
    allowed = native_mask(inputs["native_valid"], 2)
    out = gated_attention(*fixed, inputs["context_valid"], inputs["log_gates"], allowed, SCALING)
    (got,) = torch.autograd.grad((out * inputs["weights"]).sum(), inputs["log_gates"])

    def soft_loss(log_gates: Tensor) -> float:
        _, soft = reference.gated_attention(*fixed, inputs["context_valid"], log_gates, inputs["native_valid"], SCALING)
        return float((soft * inputs["weights"]).sum())

    step = 1e-6
    for place in [(0, 0, 0), (1, 1, 3), (0, 1, 2)]:
        moved = torch.zeros_like(got)
        moved[place] = step
        base = inputs["log_gates"].detach()
        numeric = (soft_loss(base + moved) - soft_loss(base - moved)) / (2 * step)
        assert float(got[place]) == pytest.approx(numeric, abs=1e-7)


def test_garbage_in_masked_slots_has_no_effect() -> None:
    inputs = make_inputs(4, 2, 2, 2, 6, 3, 3, 4)
    allowed = joint_mask(inputs["context_valid"], native_mask(inputs["native_valid"], 3))
    spoiled = [inputs[name].detach().clone() for name in ("keys", "values")]
    for tensor in spoiled:
        tensor[:, :, :6][~inputs["context_valid"]] = 1e4
    query = inputs["query"].detach()
    clean = joint_attention(query, inputs["keys"], inputs["values"], allowed, SCALING)
    assert torch.equal(joint_attention(query, *spoiled, allowed, SCALING), clean)
    gradients = torch.autograd.grad(clean.sum(), [inputs["keys"], inputs["values"]])
    for gradient in gradients:
        assert float(gradient[:, :, :6][~inputs["context_valid"]].abs().max()) == 0.0


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_per_unit_masks_equal_flex_attention() -> None:
    """Case 14: unequal counts in each head give the same numbers in another kernel."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, heads, group, slots, native, dim = 2, 2, 2, 9, 4, 16
    inputs = {
        name: t.detach().float() if t.is_floating_point() else t
        for name, t in make_inputs(5, batch, heads, group, slots, native, native, dim).items()
    }
    allowed = joint_mask(inputs["context_valid"], native_mask(inputs["native_valid"], native))

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return allowed[b, h // group, i, j]

    block = create_block_mask(visible, batch, heads * group, native, slots + native, device="cpu")
    expected = flex_attention(inputs["query"], inputs["keys"], inputs["values"], block_mask=block, scale=SCALING, enable_gqa=True)
    out = joint_attention(inputs["query"], inputs["keys"], inputs["values"], allowed, SCALING)
    torch.testing.assert_close(out, expected, atol=tolerances.ATTENTION_FLOAT32, rtol=0)


def test_join_places_slots_pads_with_zero_and_returns_gradients() -> None:
    valid = torch.tensor([[[True, True, True], [False, False, False]], [[True, False, False], [True, True, False]]])
    index = SlotIndex(valid, valid.flatten().nonzero().flatten())
    packed = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    native = torch.randn(2, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    place = index.place + index.place // index.slots * 2
    joined = join(packed, native, place, 3)
    assert torch.equal(joined[:, :, :3][valid], packed) and not bool(joined[:, :, :3][~valid].any())
    assert torch.equal(joined[:, :, 3:], native)
    assert torch.autograd.gradcheck(lambda one, other: join(one, other, place, 3), (packed, native))


def test_a_padded_query_of_an_empty_row_is_finite() -> None:
    allowed = joint_mask(torch.zeros(1, 1, 3, dtype=torch.bool), native_mask(torch.zeros(1, 2, dtype=torch.bool), 2))
    query, keys = torch.randn(1, 2, 2, 4), torch.randn(1, 1, 5, 4)
    assert bool(torch.isfinite(joint_attention(query, keys, keys, allowed, None)).all())


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_plain_forward_under_the_registered_function_is_causal(family: str) -> None:
    """Prefill, decode and a second chunk after a native cache, all without anything mounted."""
    model = tiny_model(family)
    ids = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(ids).logits
        register_attention()
        model.set_attn_implementation(IMPLEMENTATION)
        cache = DynamicCache()
        pieces = [model(ids[:, start:stop], past_key_values=cache).logits for start, stop in ((0, 4), (4, 5), (5, 9))]
        whole = model(ids).logits
    torch.testing.assert_close(whole, expected, atol=tolerances.LOGITS, rtol=0)
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, atol=tolerances.LOGITS, rtol=0)


def test_dropout_in_a_mounted_target_is_an_error() -> None:
    tensor = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ModelError, match="eval mode"):
        acct_attention(torch.nn.Identity(), tensor, tensor, tensor, None, dropout=0.1)
