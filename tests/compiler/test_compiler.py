"""The Compiler as a whole: starts at the Bridge, moves from there, keeps its precision, names what is not finite."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from acct.compiler.bridge import Bridge, BridgeStatistics
from acct.compiler.compiler import Compiler, rotate_kv
from acct.errors import InputError, InterfaceError, ModelError
from acct.selection import batch_index
from acct.types import SparseKV
from tests.compiler.states import PAIR, Batch, draw, residual


def fitted() -> Bridge:
    statistics = BridgeStatistics(PAIR)
    for seed in (20, 21):
        batch = draw(seed, (30, 25), (1, 1))
        statistics.add(batch.states, batch.selection, batch.native)
    return statistics.solve()


def loss(kv: SparseKV, batch: Batch) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return sum(((x - torch.randn(x.shape, generator=generator)) ** 2).mean() for x in (kv.keys, kv.values))  # type: ignore[return-value]


@pytest.mark.parametrize(("contexts", "tail"), [((11, 2, 17), 3), ((1,), 4), ((5, 1), 0)])
def test_starts_at_the_bridge_bit_for_bit_and_leaves_it_after_one_step(contexts: tuple[int, ...], tail: int) -> None:
    batch = draw(1, contexts, (1,) * len(contexts), tail=tail)
    compiler, bridge_only = Compiler(fitted(), residual()), Compiler(fitted(), None)
    start, bridged = compiler(batch.states, batch.selection), bridge_only(batch.states, batch.selection)
    assert torch.equal(start.keys, bridged.keys) and torch.equal(start.values, bridged.values)
    assert torch.equal(start.keys, compiler(batch.states, batch.selection, use_residual=False).keys)
    loss(start, batch).backward()
    assert compiler.residual is not None
    for name in ("key_readout", "value_readout", "key_bias", "value_bias"):
        gradient = getattr(compiler.residual, name).grad
        assert bool(torch.isfinite(gradient).all()) and (gradient.any() or not len(batch.selection.positions))
    assert all(p.grad is None for p in compiler.bridge.parameters())
    optimiser = torch.optim.AdamW(compiler.trainable_parameters(), lr=0.05)
    before = float(loss(start, batch).detach())
    for _ in range(3):
        optimiser.zero_grad()
        loss(compiler(batch.states, batch.selection), batch).backward()
        optimiser.step()
    assert compiler.residual.embedding.weight.grad is not None and compiler.residual.embedding.weight.grad.any()
    assert float(loss(compiler(batch.states, batch.selection), batch).detach()) < before
    assert all(torch.equal(a, b) for a, b in zip(compiler.bridge.parameters(), bridge_only.bridge.parameters()))


def test_a_unit_that_keeps_nothing_and_one_example_equal_the_batch() -> None:
    batch = draw(8, (9, 6), (1, 1), tail=0, empty=(0, 4, 8))
    compiler = Compiler(fitted(), residual(4, randomise=True))
    kv = compiler(batch.states, batch.selection)
    assert len(kv.keys) == int(batch.selection.counts.sum()) and not batch.selection.counts[:, [0, 4, 8]].any()
    loss(kv, batch).backward()
    assert not compiler.residual.key_readout.grad[4].any() and compiler.residual.key_readout.grad[1].any()  # type: ignore[union-attr]


def test_bfloat16_states_are_compiled_in_float32_even_under_autocast() -> None:
    batch = draw(2)
    half = {
        name: value.to(torch.bfloat16)
        for name, value in vars(batch.states).items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    states = dataclasses.replace(batch.states, **half)
    compiler = Compiler(fitted(), residual(4, randomise=True))
    exact = compiler(dataclasses.replace(states, **{name: value.float() for name, value in half.items()}), batch.selection)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kv = compiler(states, batch.selection)
    assert kv.keys.dtype == kv.values.dtype == torch.float32
    assert torch.equal(kv.keys, exact.keys) and torch.equal(kv.values, exact.values)


def test_what_is_not_finite_is_named() -> None:
    batch = draw(3)
    compiler = Compiler(fitted(), residual(4, randomise=True))
    broken = batch.states.taps.clone()
    broken[0, 1, 2] = float("nan")
    with pytest.raises(InputError, match=r"example 0.*taps already hold NaN"):
        compiler(dataclasses.replace(batch.states, taps=broken), batch.selection)
    with torch.no_grad():
        compiler.residual.value_readout[5, 0, 0] = float("inf")  # type: ignore[union-attr]
    with pytest.raises(ModelError, match=r"unit \(layer 1, head 2\).*residual.value_readout"):
        compiler(batch.states, batch.selection)


def test_rotation_uses_original_positions_once_and_identity_says_transferred() -> None:
    batch = draw(3)

    class Shift:
        def rotate(self, x: torch.Tensor, positions: torch.Tensor, total_lengths: torch.Tensor) -> torch.Tensor:
            return x + positions[:, None] + 1000 * total_lengths[:, None]

    kv = Compiler(fitted())(batch.states, batch.selection)
    rotated = rotate_kv(Shift(), kv)  # type: ignore[arg-type]
    totals = batch.selection.context_lengths[batch_index(batch.selection)]
    assert torch.equal(rotated.keys, kv.keys + batch.selection.positions[:, None] + 1000 * totals[:, None])
    assert rotated.rotated and torch.equal(rotated.values, kv.values)
    assert rotated.identity == {"kind": "transferred", "mapper": "acct-compiler", "source.model": "tiny"}
    with pytest.raises(InterfaceError, match="rotated already"):
        rotate_kv(Shift(), rotated)  # type: ignore[arg-type]
