"""The Bridge against augmented least squares, on affine data, on noise, at large offsets, and where rows are scarce."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
import torch

from acct.compiler.bridge import Bridge, BridgeStatistics, held_out_r2, report
from acct.errors import ConfigError, InputError, SelectionError
from acct.geometry import ModelGeometry, PairGeometry
from acct.selection import batch_index, gather_source, rows, unit_index
from tests.compiler.states import PAIR, Batch, draw
from tests.reference import bridge as reference


def accumulate(batches: list[Batch], pair: PairGeometry = PAIR) -> BridgeStatistics:
    statistics = BridgeStatistics(pair)
    for batch in batches:
        statistics.add(batch.states, batch.selection, batch.native)
    return statistics


def affine(batch: Batch, maps: torch.Tensor, bias: torch.Tensor, pair: PairGeometry = PAIR) -> Batch:
    """Native keys and values that are an affine image [kind, unit, source dim, dim] of the source's."""
    layers, heads = torch.tensor(pair.source_layers()), torch.tensor(pair.source_heads())
    keys, values = (
        x[:, layers, heads] @ maps[kind] + bias[kind][:, None] for kind, x in enumerate((batch.states.keys_pre, batch.states.values))
    )
    return dataclasses.replace(batch, native=dataclasses.replace(batch.native, context_keys_pre=keys, context_values=values))


def shifted(batch: Batch, offset: float) -> Batch:
    states, native = batch.states, batch.native
    return Batch(
        dataclasses.replace(states, keys_pre=states.keys_pre + offset, values=states.values - offset),
        dataclasses.replace(native, context_keys_pre=native.context_keys_pre + offset, context_values=native.context_values - offset),
        batch.selection,
    )


@pytest.mark.parametrize("ridge", [1e-2, 30.0])
def test_maps_equal_augmented_least_squares_with_an_unpenalised_bias(ridge: float) -> None:
    batches = [shifted(draw(seed, (23, 9, 31), (1, 1, 1), empty=(4,)), 2.0) for seed in range(3)]
    bridge = accumulate(batches).solve(ridge, torch.float64)
    parts = [(b.states, b.selection, b.native) for b in batches]
    for unit in range(PAIR.units):
        for kind, maps, bias in (("keys", bridge.key_map, bridge.key_bias), ("values", bridge.value_map, bridge.value_bias)):
            expected = reference.fit(*reference.observations(parts, PAIR, unit, kind), ridge * PAIR.target.head_dim / 128)
            np.testing.assert_allclose(maps[unit].numpy(), expected[0], atol=1e-10)
            np.testing.assert_allclose(bias[unit].numpy(), expected[1], atol=1e-10)
            penalised = reference.fit(*reference.observations(parts, PAIR, unit, kind), ridge)
            assert ridge < 1 or np.abs(penalised[0] - expected[0]).max() > 1e-3  # lambda scales with d_T / 128


WIDE = PairGeometry(
    source=ModelGeometry("llama", layers=5, kv_heads=3, query_heads=6, head_dim=6, hidden=20, vocabulary=11),
    target=ModelGeometry("llama", layers=3, kv_heads=2, query_heads=4, head_dim=10, hidden=28, vocabulary=11),
)
"""pi_L = 0, 2, 4."""


@pytest.mark.parametrize(
    ("layers", "heads", "expected"),
    [
        (1, "modulo", {0: [(0, 0)], 3: [(2, 1)], 5: [(4, 1)]}),
        (1, "block", {0: [(0, 0)], 3: [(2, 1)], 4: [(4, 0)]}),
        (3, "modulo", {1: [(0, 1), (1, 1), (2, 1)], 2: [(1, 0), (2, 0), (3, 0)], 5: [(2, 1), (3, 1), (4, 1)]}),
        (2, "all", {0: [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], 4: [(3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2)]}),
    ],
)
def test_a_bridge_that_reads_more_is_least_squares_on_all_that_it_reads(
    layers: int, heads: str, expected: dict[int, list[tuple[int, int]]]
) -> None:
    reads = WIDE.source_reads(layers, heads)
    assert {unit: [divmod(vector, 3) for vector in reads[unit]] for unit in expected} == expected
    batches = [draw(seed, (23, 9, 31), (1, 1, 1), pair=WIDE) for seed in range(4)]
    statistics = BridgeStatistics(WIDE, reads=reads)
    for batch in batches:
        statistics.add(batch.states, batch.selection, batch.native)
    bridge = statistics.solve(1e-2, torch.float64)
    assert bridge.reads == reads and bridge.key_map.shape == (6, len(reads[0]) * 6, 10)
    parts = [(b.states, b.selection, b.native) for b in batches]
    mapped = bridge(batches[0].states, batches[0].selection)
    owner = unit_index(batches[0].selection)
    for unit, vectors in expected.items():
        for kind, maps, bias, made in zip(
            ("keys", "values"), (bridge.key_map, bridge.value_map), (bridge.key_bias, bridge.value_bias), mapped
        ):
            fitted = reference.fit(*reference.observations(parts, WIDE, unit, kind, vectors), 1e-2 * 10 / 128)
            np.testing.assert_allclose(maps[unit].numpy(), fitted[0], atol=1e-9)
            np.testing.assert_allclose(bias[unit].numpy(), fitted[1], atol=1e-9)
            x, _ = reference.observations(parts[:1], WIDE, unit, kind, vectors)
            np.testing.assert_allclose(made[owner == unit].numpy(), x @ fitted[0] + fitted[1], atol=1e-9)


def test_block_heads_keep_relative_places() -> None:
    pair = PairGeometry(
        source=ModelGeometry("llama", layers=1, kv_heads=2, query_heads=2, head_dim=6, hidden=20, vocabulary=11),
        target=ModelGeometry("llama", layers=1, kv_heads=4, query_heads=4, head_dim=10, hidden=28, vocabulary=11),
    )
    assert pair.source_reads(1, "block") == ((0,), (0,), (1,), (1,)) and pair.source_reads() == ((0,), (1,), (0,), (1,))


def test_reads_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="reads 1 to 5 source layers, got 6"):
        WIDE.source_reads(6)
    with pytest.raises(ConfigError, match="head map must be one of modulo, block, all, got 'learned'"):
        WIDE.source_reads(1, "learned")


def test_batch_by_batch_equals_all_at_once_at_a_large_offset() -> None:
    """Raw moments cancel at an offset of 1e4 (cases.md, row 9): centred ones agree with one shot in float64 to 1e-8."""
    batches = [shifted(draw(seed, (40, 25), (1, 1), dtype=torch.float64), 1e4) for seed in range(6)]
    one_by_one = [Batch(b.states, b.native, b.selection) for b in batches]
    statistics = accumulate(one_by_one)
    parts = [(b.states, b.selection, b.native) for b in batches]
    bridge = statistics.solve(1e-2, torch.float64)
    for unit in range(PAIR.units):
        x, y = reference.observations(parts, PAIR, unit, "keys")
        x_c, y_c = x - x.mean(0), y - y.mean(0)
        np.testing.assert_allclose(statistics.source_products[0, unit].numpy(), x_c.T @ x_c, atol=1e-8)
        maps = np.linalg.solve(x_c.T @ x_c + 1e-2 * 10 / 128 * np.eye(6), x_c.T @ y_c)
        np.testing.assert_allclose(bridge.key_map[unit].numpy(), maps, atol=1e-8)
        np.testing.assert_allclose(bridge.key_bias[unit].numpy(), y.mean(0) - x.mean(0) @ maps, rtol=1e-8)


def test_merged_parts_and_single_examples_equal_one_accumulation() -> None:
    batches = [draw(seed, (12, 5, 20), (1, 1, 1), empty=(0,), dtype=torch.float64) for seed in range(4)]
    whole, first, second = accumulate(batches), accumulate(batches[:1]), BridgeStatistics(PAIR)
    for batch in batches[1:]:
        for example in range(3):
            kept = rows(batch.selection, [example])
            states = {n: v[[example]] for n, v in vars(batch.states).items() if isinstance(v, torch.Tensor)}
            native = {n: v[[example]] for n, v in vars(batch.native).items() if isinstance(v, torch.Tensor)}
            second.add(dataclasses.replace(batch.states, **states), kept, dataclasses.replace(batch.native, **native))
    first.merge(second)
    tensors = ([v for v in vars(one).values() if isinstance(v, torch.Tensor)] for one in (whole, first))
    for a, b in zip(*tensors):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-11)


def test_exact_on_affine_data_as_the_ridge_vanishes_between_unequal_head_widths() -> None:
    generator = torch.Generator().manual_seed(5)
    maps = torch.randn(2, 9, 6, 10, generator=generator, dtype=torch.float64)
    bias = torch.randn(2, 9, 10, generator=generator, dtype=torch.float64)
    batches = [affine(draw(seed, (40, 31), (1, 1), dtype=torch.float64), maps, bias) for seed in range(2)]
    errors = []
    for ridge in (1.0, 1e-3, 1e-9):
        bridge = accumulate(batches).solve(ridge, torch.float64)
        errors.append(float((bridge.key_map - maps[0]).abs().max() + (bridge.value_bias - bias[1]).abs().max()))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-8
    fresh = affine(draw(9, (14, 8), (1, 1), dtype=torch.float64), maps, bias)
    keys, values = bridge(fresh.states, fresh.selection)
    where = batch_index(fresh.selection), unit_index(fresh.selection), fresh.selection.positions
    torch.testing.assert_close(keys, fresh.native.context_keys_pre[where], rtol=0, atol=1e-8)
    torch.testing.assert_close(values, fresh.native.context_values[where], rtol=0, atol=1e-8)
    assert min(float(r2.min()) for r2 in held_out_r2(bridge, accumulate([fresh]))) > 1 - 1e-12


def test_application_is_the_map_of_each_slots_unit() -> None:
    batch = draw(4)
    bridge = accumulate([draw(seed, (40, 20), (1, 1)) for seed in range(2)]).solve()
    keys, values = bridge(batch.states, batch.selection)
    source_keys, source_values = gather_source(batch.selection, batch.states, PAIR)
    for slot, unit in enumerate(unit_index(batch.selection).tolist()):
        torch.testing.assert_close(keys[slot], source_keys[slot] @ bridge.key_map[unit] + bridge.key_bias[unit], rtol=0, atol=2e-6)
        torch.testing.assert_close(values[slot], source_values[slot] @ bridge.value_map[unit] + bridge.value_bias[unit], rtol=0, atol=2e-6)
    assert keys.dtype == torch.float32 and not any(p.requires_grad for p in bridge.parameters())


def test_lambda_acts_on_sums_so_that_repeating_the_data_weakens_it() -> None:
    batch = draw(1, (30, 22), (1, 1))
    once, twice = accumulate([batch]).solve(5.0, torch.float64), accumulate([batch, batch]).solve(5.0, torch.float64)
    half = accumulate([batch]).solve(2.5, torch.float64)
    torch.testing.assert_close(twice.key_map, half.key_map, rtol=1e-10, atol=1e-12)
    assert float((once.key_map - twice.key_map).abs().max()) > 1e-3


def test_a_unit_without_rows_gets_a_zero_map_and_its_layers_mean(caplog: pytest.LogCaptureFixture) -> None:
    batches = [draw(seed, (12, 15), (1, 1), tail=0, empty=(4,)) for seed in range(2)]
    statistics = accumulate(batches)
    with caplog.at_level(logging.WARNING):
        bridge = statistics.solve(1e-2, torch.float64)
    assert "1 of 9 units have no selected position" in caplog.text
    assert not bridge.key_map[4].any() and not bridge.value_map[4].any()
    seen = [reference.observations([(b.states, b.selection, b.native) for b in batches], PAIR, unit, "values")[1] for unit in (3, 5)]
    np.testing.assert_allclose(bridge.value_bias[4].numpy(), np.concatenate(seen).mean(0), atol=1e-12)
    untouched = BridgeStatistics(PAIR).solve(1e-2)
    assert not any(p.any() for p in untouched.parameters())


def test_held_out_r2_equals_the_loop_and_noise_explains_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """In-sample R2 is high and held-out R2 is not when parameters / rows is near 1 (cases.md, row 7)."""
    fitted, other = accumulate([draw(0, (7, 6), (1, 1))]), [draw(seed, (40, 50), (1, 1)) for seed in (7, 8)]
    bridge, held_out = fitted.solve(), accumulate(other)
    keys, values = held_out_r2(bridge, held_out)
    parts = [(b.states, b.selection, b.native) for b in other]
    for unit in range(PAIR.units):
        for kind, got, name in (("keys", keys, "key"), ("values", values, "value")):
            maps, bias = (getattr(bridge, f"{name}_{part}")[unit].double().numpy() for part in ("map", "bias"))
            assert abs(reference.r2(*reference.observations(parts, PAIR, unit, kind), maps, bias) - float(got[unit])) < 1e-9
    assert float(keys.max()) <= 0 and float(values.max()) <= 0
    assert float(held_out_r2(bridge, fitted)[0].nanmean()) > 0.3
    with caplog.at_level(logging.INFO):
        summary = report(bridge, fitted, held_out)
    assert "held-out R2 of keys" in caplog.text and "warn_above" in caplog.text
    assert float(summary.parameters_per_row.max()) > 0.2 and len(summary.by_layer(3)) == 3
    caplog.clear()
    report(bridge, held_out, held_out, warn_above=float("inf"))
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_outlier_channels_stay_finite_and_beat_the_raw_copy() -> None:
    """Families with key biases have channels hundreds of times larger than the rest (cases.md, row 8)."""
    geometry = ModelGeometry("qwen2", layers=2, kv_heads=2, query_heads=2, head_dim=8, hidden=16, vocabulary=5)
    pair = PairGeometry(geometry, geometry)
    scale = torch.ones(8)
    scale[3], scale[5] = 400.0, 1e-3
    mixing = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(2)) * 0.5
    batches = []
    for seed in range(4):
        batch = draw(seed, (40, 60), (1, 1), pair=pair)
        states = dataclasses.replace(batch.states, keys_pre=batch.states.keys_pre * scale + 50 * scale, values=batch.states.values * scale)
        batches.append(affine(dataclasses.replace(batch, states=states), mixing, torch.ones(2, 4, 8), pair))
    bridge = accumulate(batches[:3], pair).solve()
    last = batches[3]
    keys, values = bridge(last.states, last.selection)
    assert bool(torch.isfinite(keys).all()) and bool(torch.isfinite(values).all())
    copied = gather_source(last.selection, last.states, pair)
    where = batch_index(last.selection), unit_index(last.selection), last.selection.positions
    for mapped, raw, native in zip((keys, values), copied, (last.native.context_keys_pre[where], last.native.context_values[where])):
        assert float((mapped - native).square().mean()) < 1e-4 * float((raw - native).square().mean())


def test_bad_input_is_named() -> None:
    batch = draw(0)
    slot = 5
    where = batch_index(batch.selection)[slot], unit_index(batch.selection)[slot], batch.selection.positions[slot]
    broken = batch.native.context_keys_pre.clone()
    broken[where] = float("nan")
    statistics = BridgeStatistics(PAIR)
    with pytest.raises(InputError, match="native target keys at 1 of"):
        statistics.add(batch.states, batch.selection, dataclasses.replace(batch.native, context_keys_pre=broken))
    assert not statistics.rows.any()
    with pytest.raises(SelectionError, match="head widths 6 -> 6"):
        statistics.add(batch.states, batch.selection, dataclasses.replace(batch.native, context_keys_pre=broken[..., :6]))
    with pytest.raises(ConfigError, match="singular at ridge 0"):
        accumulate([draw(0, (3, 3), (1, 1))]).solve(0.0)


def test_a_bridge_survives_its_state_dict() -> None:
    bridge = accumulate([draw(0, (30, 30), (1, 1))]).solve()
    other = Bridge(PAIR)
    other.load_state_dict(bridge.state_dict())
    batch = draw(3)
    assert all(torch.equal(a, b) for a, b in zip(bridge(batch.states, batch.selection), other(batch.states, batch.selection)))
