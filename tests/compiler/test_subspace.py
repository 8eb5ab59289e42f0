"""One source vector for all units: what it reads, that it is the best of its width, and a Compiler that reads it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from acct.compiler import subspace as module
from acct.compiler.bridge import Bridge, BridgeStatistics, held_out_r2
from acct.compiler.compiler import Compiler
from acct.compiler.residual import Residual, ResidualShape
from acct.compiler.subspace import Subspace, SubspaceStatistics, leading, subspace_geometry, subspace_inputs
from acct.config.modules import CompilerConfig
from acct.errors import ConfigError, InputError, InterfaceError, ModelError
from acct.types import NativeStates, SourceStates
from tests.compiler.states import PAIR, draw

VOCABULARY = 11
INPUTS = 2 * 2 * 2 * 6 + 2 * 28
"""Keys and values of two layers with two heads of 6 numbers, and two embeddings of the target."""


def table() -> Tensor:
    return torch.randn(VOCABULARY, PAIR.target.hidden, generator=torch.Generator().manual_seed(9)) * 5


def tokens(states: SourceStates, seed: int) -> SourceStates:
    drawn = torch.randint(VOCABULARY, states.context_ids.shape, generator=torch.Generator().manual_seed(seed))
    return dataclasses.replace(states, context_ids=drawn)


def known(states: SourceStates, row: int, position: int) -> Tensor:
    """x of one position, part by part."""
    parts = [
        kind[row, layer, head, position]
        for kind in (states.keys_pre, states.values)
        for layer in range(PAIR.source.layers)
        for head in range(PAIR.source.kv_heads)
    ]
    for before in range(2):
        if position < before:
            parts.append(torch.zeros(PAIR.target.hidden))
        else:
            embedding = table()[states.context_ids[row, position - before]]
            parts.append(embedding / embedding.square().mean().sqrt())
    return torch.cat(parts)


def data(count: int, offset: float = 0.0) -> tuple[list[tuple[SourceStates, NativeStates]], Tensor, Tensor]:
    """Batches whose native states depend on x through three directions and noise, and all rows of x and y without padding."""
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(INPUTS, 3, generator=generator) @ torch.randn(3, 2 * PAIR.units * 10, generator=generator)
    batches, xs, ys = [], [], []
    for number in range(count):
        batch = draw(number, extra=2)
        states = tokens(batch.states, number)
        states = dataclasses.replace(states, keys_pre=states.keys_pre * 3 + offset)
        keys, values = batch.native.context_keys_pre.clone(), batch.native.context_values.clone()
        for row, length in enumerate(states.context_lengths.tolist()):
            x = torch.stack([known(states, row, position) for position in range(length)])
            y = x @ mixing + torch.randn(length, mixing.shape[1], generator=generator)
            by_unit = y.view(length, PAIR.units, 2, 10).transpose(0, 1)
            keys[row, :, :length], values[row, :, :length] = by_unit[:, :, 0], by_unit[:, :, 1]
            keys[row, :, length:] = 1e6  # padding
            xs.append(x), ys.append(y)
        batches.append((states, dataclasses.replace(batch.native, context_keys_pre=keys, context_values=values)))
    return batches, torch.cat(xs), torch.cat(ys)


def fitted(batches: list[tuple[SourceStates, NativeStates]], width: int, ridge: float = 1e-4) -> Subspace:
    subspace = Subspace(PAIR, width, 2).bind(table())
    statistics = SubspaceStatistics(subspace, PAIR)
    for states, native in batches:
        statistics.add(states, native)
    statistics.solve(ridge)
    return subspace


def test_x_is_every_state_and_the_embeddings_of_the_token_and_the_one_before() -> None:
    states = tokens(draw(3).states, 3)
    subspace = Subspace(PAIR, 4, 2).bind(table())
    assert subspace_inputs(PAIR, 2) == INPUTS
    x = subspace.known(states)
    for row, length in enumerate(states.context_lengths.tolist()):
        for position in range(length):
            torch.testing.assert_close(x[row, position], known(states, row, position))
    place = torch.tensor([0, 1, 5])
    assert torch.equal(subspace.known(states, place), x[:, place])


def test_it_is_the_reduced_rank_ridge_regression() -> None:
    """The error on its own data equals the optimum that the singular vectors of the augmented problem give, at every width."""
    batches, x, y = data(12)
    mean = x.double().mean(0)
    x, y = x.double() - mean, y.double() - y.double().mean(0)
    spread = x.square().mean(0).sqrt()
    x = x / spread
    scale = y.square().mean(0).view(-1, 10).mean(1, keepdim=True).sqrt().expand(-1, 10).flatten()
    y = y / scale
    n, ridge = len(x), 1e-2
    augmented = torch.cat([x, (n * ridge) ** 0.5 * torch.eye(INPUTS, dtype=torch.float64)])
    padded = torch.cat([y, torch.zeros(INPUTS, y.shape[1], dtype=torch.float64)])
    whole = augmented @ torch.linalg.lstsq(augmented, padded).solution
    directions = torch.linalg.svd(whole, full_matrices=False).Vh
    for width in (1, 3, 7):
        best = whole @ directions[:width].T @ directions[:width]
        optimum = (padded - best).square().sum()
        subspace = fitted(batches, width, ridge)
        z = augmented @ (subspace.weight.double() * spread[:, None])
        reached = (padded - z @ torch.linalg.lstsq(z, padded).solution).square().sum()
        assert float(reached) == pytest.approx(float(optimum), rel=1e-4)
        torch.testing.assert_close(subspace.bias.double(), -mean @ subspace.weight.double(), rtol=1e-4, atol=1e-4)


def test_three_directions_hold_all_that_the_target_depends_on() -> None:
    batches, _, y = data(12)
    subspace = fitted(batches, 3)
    inside = [torch.arange(s.context_ids.shape[1]) < s.context_lengths[:, None] for s, _ in batches]
    h = torch.cat([subspace(s).keys_pre[:, 0, 0][where] for (s, _), where in zip(batches, inside)]).double()
    y = y.double() - y.double().mean(0)
    left = y - h @ torch.linalg.lstsq(h, y).solution
    assert left.square().mean() < 1.05, "the noise alone has a variance of 1"
    assert y.square().mean() > 50


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_sums_are_exact_whatever_the_offset_and_the_batches(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, x, y = data(9, offset)
    x, y = x.double(), y.double()
    wanted = {"rows": x.new_tensor(len(x)), "x": x.sum(0), "y": y.sum(0), "yy": y.square().sum(0), "xx": x.T @ x, "xy": x.T @ y}
    for rows in (1, 64, 10_000):
        monkeypatch.setattr(module, "ROWS", rows)
        statistics = SubspaceStatistics(Subspace(PAIR, 2, 2).bind(table()), PAIR)
        for states, native in batches:
            statistics.add(states, native)
        for name, value in statistics.sums().items():
            assert float((value - wanted[name]).abs().max() / wanted[name].abs().max()) < 1e-6, name  # products of a block are float32
        centred = statistics.xx - statistics.x[:, None] * statistics.x / statistics.rows
        exact = (x - x.mean(0)).T @ (x - x.mean(0))
        assert float((centred - exact).abs().max() / exact.abs().max()) < 1e-5, "no digits are lost to the offset"


def test_a_stride_reads_every_nth_position() -> None:
    batches, _, _ = data(2)
    statistics = SubspaceStatistics(Subspace(PAIR, 2, 2).bind(table()), PAIR, stride=4)
    for states, native in batches:
        statistics.add(states, native)
    assert float(statistics.sums()["rows"]) == 2 * (3 + 1 + 5)
    x = torch.stack([known(s, row, p) for s, _ in batches for row, n in enumerate(s.context_lengths.tolist()) for p in range(0, n, 4)])
    torch.testing.assert_close(statistics.x, x.double().sum(0), rtol=1e-6, atol=1e-4)


def test_leading_directions_are_those_of_the_singular_value_decomposition() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(300, 90, generator=generator) @ torch.diag(0.9 ** torch.arange(90)) @ torch.randn(90, 400, generator=generator)
    exact = torch.linalg.svd(matrix.double()).U[:, :20]
    found = leading(matrix, 20).double()
    assert float((found.T @ exact).square().sum()) == pytest.approx(20, abs=1e-3)


def filled(width: int = 5) -> Compiler:
    seen = subspace_geometry(PAIR, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        residual = Residual(ResidualShape(20, PAIR.units, 10, width=64, feed_forward_width=96, depth=2, latents=5))
        made = Compiler(Bridge(seen), residual, subspace=Subspace(PAIR, width, 2)).requires_grad_(False)
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return made


def test_a_compiler_maps_the_subspace_in_every_way_of_running() -> None:
    batch, made = draw(5, extra=3), filled()
    states = tokens(batch.states, 5)
    with pytest.raises(InterfaceError, match="no table is bound"):
        made(states, batch.selection)
    made.subspace.bind(table())
    h = made.subspace(states)
    alone = Compiler(made.bridge, made.residual)
    with torch.no_grad():
        fast, plain, given = made(states, batch.selection), made(states, batch.selection, plain=True), alone(h, batch.selection)
    torch.testing.assert_close(fast.keys, plain.keys, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(fast.values, plain.values, rtol=1e-6, atol=1e-6)
    assert torch.equal(fast.keys, given.keys) and fast.identity == given.identity
    changed = made(dataclasses.replace(states, context_ids=(states.context_ids + 1) % VOCABULARY), batch.selection)
    assert not torch.allclose(changed.keys, fast.keys), "embeddings are read"
    assert not any("table" in name for name in made.state_dict()), "the table stays the target's"


def test_what_is_not_finite_is_found_where_it_is() -> None:
    batch, made = draw(5), filled()
    states = tokens(batch.states, 5)
    made.subspace.bind(table())
    broken = states.values.clone()
    broken[0, 0, 0] = float("nan")
    with torch.no_grad(), pytest.raises(InputError, match="source's values already hold NaN"):
        made(dataclasses.replace(states, values=broken), batch.selection)
    made.subspace.weight[0, 0] = float("nan")
    with torch.no_grad(), pytest.raises(ModelError, match=r"weight subspace\.weight holds NaN"):
        made(states, batch.selection)


def test_sums_over_one_vector_for_both_kinds_are_those_of_two() -> None:
    seen = subspace_geometry(PAIR, 5)
    subspace = filled().subspace.bind(table())
    whole, both = BridgeStatistics(seen, shared=True), BridgeStatistics(seen)
    parts = [BridgeStatistics(seen, shared=True) for _ in range(2)]
    for number in range(6):
        batch = draw(number, (23, 40, 31))
        states = subspace(tokens(batch.states, number))
        for statistics in (whole, both, parts[number % 2]):
            statistics.add(states, batch.selection, batch.native)
    parts[0].merge(parts[1])
    assert len(whole.source_products) == 1
    fitted_once, fitted_twice, merged = whole.solve(), both.solve(), parts[0].solve()
    for name, value in fitted_twice.state_dict().items():
        torch.testing.assert_close(fitted_once.state_dict()[name], value, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(merged.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    for one, two in zip(held_out_r2(fitted_once, whole), held_out_r2(fitted_twice, both)):
        torch.testing.assert_close(one, two)


def test_kernels_and_other_reads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = filled()
    monkeypatch.setattr("acct.compiler.compiler.choose", lambda *_: True)
    assert not made.takes_kernels
    made.kernels = "triton"
    with pytest.raises(ConfigError, match=r"compiler\.subspace_width"):
        made.takes_kernels  # noqa: B018
    with pytest.raises(ConfigError, match="gives the Bridge all source layers"):
        CompilerConfig(subspace_width=8, bridge_layers=2)
    with pytest.raises(ConfigError, match=f"exceeds the {INPUTS} numbers"):
        Subspace(PAIR, INPUTS + 1, 2)


def test_nothing_to_fit_on_and_a_singular_system_are_told() -> None:
    with pytest.raises(ConfigError, match="no context position"):
        fitted([], 2)
    with pytest.raises(ConfigError, match=r"singular at compiler\.subspace_ridge=0"):
        fitted(data(1)[0], 2, ridge=0.0)
    states, native = data(1)[0][0]
    native.context_values[0, 1, 4] = float("inf")
    with pytest.raises(InputError, match="native target states at 1 of 30 context positions"):
        fitted([(states, native)], 2)
    states.keys_pre[1, 0, 0, 1] = float("nan")
    with pytest.raises(InputError, match="source keys, values or embeddings at 1 of 30 context positions"):
        fitted([(states, native)], 2)
