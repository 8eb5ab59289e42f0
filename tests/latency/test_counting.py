"""Operations from shapes against what PyTorch's own counter sees."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from acct.allocator.budget import BudgetRule
from acct.compiler.residual import CONDITIONS
from acct.compiler.subspace import subspace_inputs
from acct.config.root import compose
from acct.geometry import PairGeometry
from acct.latency import counting
from acct.latency.stages import random_interface, random_ridge, random_states, target_prefill
from acct.models.registry import adapter_for
from acct.pipeline import choose, rank
from acct.selection import union
from acct.training.modules import bridge_geometry, cartographer_shape, residual_shape
from tests.tiny import FAMILIES, tiny_model

TOKENS = 96


def counted(action, *arguments) -> int:  # type: ignore[no-untyped-def]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        action(*arguments)
    return counter.get_total_flops()


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_operations_are_those_that_run_with_half_of_the_attention(family: str) -> None:
    adapter = adapter_for(tiny_model(family, size="target"))
    geometry, inner = adapter.geometry, adapter.model.config.intermediate_size
    whole = geometry.layers * 4 * geometry.query_heads * geometry.head_dim * TOKENS * TOKENS
    half = whole * (TOKENS + 1) / (2 * TOKENS)
    seen = counted(target_prefill, adapter, torch.zeros(1, TOKENS, dtype=torch.int64))
    places = torch.arange(TOKENS)[None]
    angles = counted(adapter.parts.decoder.rotary_emb, torch.zeros(1, TOKENS, geometry.hidden), places)  # a matrix product in some versions
    assert counting.prefill(geometry, inner, TOKENS, 4).flops - half == seen - whole - angles
    work = counting.step(geometry, inner, 1, 1000.0, 4)
    assert work.flops > counting.prefill(geometry, inner, 1, 4).flops + 2 * geometry.hidden * geometry.vocabulary


@pytest.mark.parametrize("width", [0, 24])
def test_conversion_operations_are_those_that_run(width: int) -> None:
    config = compose(["debug=tiny", "latency.spread=0.0", "budget.tail_tokens=32", f"compiler.subspace_width={width}"])
    source, target = (adapter_for(tiny_model("qwen3", size=size)).geometry for size in ("source", "target"))
    geometry, rule = PairGeometry(source, target), BudgetRule(0.5, 32)
    interface = random_interface(config, geometry, 0)
    interface = type(interface)(interface.compiler.requires_grad_(False), rule, interface.cartographer, interface.allocator)
    states = random_states(source, TOKENS, 8, torch.float32, torch.device("cpu"), torch.Generator().manual_seed(0))
    seen = counted(rank, interface, geometry, states)
    shape = cartographer_shape(config, geometry)
    elementwise = 2 * geometry.units * TOKENS * shape.attention_width  # addition and GELU, which PyTorch does not count
    assert counting.cartographer(geometry, shape, TOKENS, 8, 4).flops - elementwise == seen
    with torch.no_grad():
        selection = choose(interface, geometry, states)
    seen = counted(interface.compiler, states, selection)
    residual, kept = residual_shape(config, geometry), len(union(selection).positions)
    per_row = 4 * geometry.target.head_dim  # keys and values
    folded = per_row * CONDITIONS * geometry.units * residual.width  # W_xi W_p
    in_place = per_row * (residual.width + CONDITIONS) * len(selection.positions)  # PyTorch does not count baddbmm_
    given = (bridge_geometry(config, geometry), residual, rule, TOKENS, 4, kept)
    shared = subspace_inputs(geometry, config.compiler.subspace_tokens) if width else 0
    assert counting.compiler(*given, shared=shared).flops == seen - folded + in_place
    for layers, heads in ((1, "local"), (2, "local"), (1, "all"), (2, "all")):
        made = random_ridge(geometry, layers, torch.device("cpu"), torch.float32, 0, heads)
        assert counting.ridge(geometry, layers, TOKENS, 4, heads).flops == counted(made, states)


def test_ideal_bytes_are_the_papers_formula() -> None:
    source, target = (adapter_for(tiny_model("llama", size=size)).geometry for size in ("source", "target"))
    geometry = PairGeometry(source, target)
    assert counting.ideal_bytes(geometry, BudgetRule(0.25, 4), 100, 2) == 2 * geometry.units * 25 * target.head_dim * 2
    assert counting.allocator(geometry, BudgetRule(0.25, 4), 100).flops == 0
    packing, rotation = (counting.movement(geometry, BudgetRule(0.25, 4), 100, 2, rotated) for rotated in (False, True))
    assert packing.bytes == 2 * rotation.bytes and (packing + rotation).flops == rotation.flops
