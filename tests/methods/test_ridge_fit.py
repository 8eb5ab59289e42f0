"""The closed-form fit against NumPy's least squares, exact pairs, and itself in pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from acct.errors import ConfigError, SelectionError
from acct.methods import ridge_fit
from acct.methods.ridge_fit import HeldOut, RidgeStatistics
from acct.methods.ridge_map import RidgeMap
from tests.compiler.states import PAIR, Batch, draw

KINDS = [(1, "local"), (2, "local"), (1, "all"), (2, "all")]
LONG = (40, 3, 57)


def fitted(batches: list[Batch], layers: int, heads: str, penalty: float, gigabytes: float = 4.0) -> RidgeMap:
    """A map in float64, so that only the fit's own rounding remains."""
    linear = RidgeMap(PAIR, layers, heads).double()
    statistics = RidgeStatistics(linear, gigabytes)
    for number in range(len(statistics.passes)):
        for batch in batches:
            statistics.add(number, batch.states, batch.native)
        statistics.solve(number, penalty)
    return linear


def rows_of(batch: Batch, linear: RidgeMap, group: int, keys: bool) -> tuple[np.ndarray, np.ndarray]:
    """X and Y of a group, position by position."""
    found = []
    source, target = (batch.states.keys_pre, batch.native.context_keys_pre) if keys else (batch.states.values, batch.native.context_values)
    for example, length in enumerate(batch.states.context_lengths.tolist()):
        for position in range(length):
            read = [divmod(row, PAIR.source.kv_heads) for row in linear.rows[group].tolist()]
            x = np.concatenate([source[example, layer, head, position].double().numpy() for layer, head in read])
            y = np.concatenate([target[example, unit, position].double().numpy() for unit in linear.targets[group].tolist()])
            found.append((x, y))
    return np.array([x for x, _ in found]), np.array([y for _, y in found])


@pytest.mark.parametrize(("layers", "heads"), KINDS)
@pytest.mark.parametrize("penalty", [0.01, 3.0])
def test_the_fit_is_the_least_squares_solution_of_the_augmented_system(layers: int, heads: str, penalty: float) -> None:
    """|X W - Y|^2 + lambda |W|^2 is plain least squares over rows sqrt(lambda) I beside zeros; padding never enters."""
    batch = draw(3, LONG, dtype=torch.float64, extra=2)
    linear = fitted([batch], layers, heads, penalty)
    for keys, maps in ((True, linear.key_map), (False, linear.value_map)):
        for group in range(len(maps)):
            x, y = rows_of(batch, linear, group, keys)
            width = x.shape[1]
            augmented = np.concatenate([x, penalty**0.5 * np.eye(width)]), np.concatenate([y, np.zeros((width, y.shape[1]))])
            expected = np.linalg.lstsq(*augmented, rcond=None)[0]
            np.testing.assert_allclose(maps[group].numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("layers", "heads"), KINDS)
def test_an_exactly_linear_pair_is_recovered(layers: int, heads: str) -> None:
    batch, truth = draw(5, LONG, dtype=torch.float64), RidgeMap(PAIR, layers, heads).double()
    generator = torch.Generator().manual_seed(2)
    for parameter in truth.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    keys, values = truth(batch.states)
    native = replace(batch.native, context_keys_pre=keys, context_values=values)
    found = fitted([replace(batch, native=native)], layers, heads, 1e-12)
    torch.testing.assert_close(found.key_map, truth.key_map, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.value_map, truth.value_map, rtol=0, atol=1e-9)
    measured = HeldOut(found)
    measured.add(batch.states, native)
    assert all(torch.allclose(r2, torch.ones_like(r2), atol=1e-9) for r2 in measured.r2())


@pytest.mark.parametrize(("layers", "heads"), KINDS)
def test_streamed_in_pieces_and_passes_equals_all_at_once(layers: int, heads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge_fit, "ROWS", 7)
    parts = [draw(seed, lengths, queries=(2,) * len(lengths)) for seed, lengths in ((0, (11, 2)), (1, (17,)), (2, (5, 29, 13)))]
    streamed = fitted(parts, layers, heads, 0.01, gigabytes=1e-9)
    assert len(RidgeStatistics(RidgeMap(PAIR, layers, heads), 1e-9).passes) == len(torch.unique(streamed.rows, dim=0)), "one input a pass"
    monkeypatch.setattr(ridge_fit, "ROWS", 4096)
    at_once = fitted(parts[::-1], layers, heads, 0.01)
    torch.testing.assert_close(streamed.key_map, at_once.key_map, rtol=0, atol=1e-11)
    torch.testing.assert_close(streamed.value_map, at_once.value_map, rtol=0, atol=1e-11)


def test_a_large_common_offset_costs_no_digits_in_float64() -> None:
    batch = draw(7, LONG, dtype=torch.float64)
    moved = replace(batch, states=replace(batch.states, keys_pre=batch.states.keys_pre + 1e4))
    linear = fitted([moved], 1, "local", 1e-2)
    for group in range(2):
        x, y = rows_of(moved, linear, group, True)
        predicted = np.linalg.lstsq(np.concatenate([x, 0.1 * np.eye(6)]), np.concatenate([y, np.zeros((6, 10))]), rcond=None)[0]
        np.testing.assert_allclose(x @ linear.key_map[group].numpy(), x @ predicted, rtol=0, atol=1e-4)


def test_noise_is_not_explained_on_other_examples() -> None:
    linear = fitted([draw(0, LONG)], 2, "all", 0.01)
    measured = HeldOut(linear)
    measured.add(*(lambda batch: (batch.states, batch.native))(draw(1, LONG, dtype=torch.float64)))
    assert all(bool((r2 <= 0).all()) for r2 in measured.r2())


def test_held_out_r2_is_one_minus_errors_over_variance() -> None:
    linear = fitted([draw(0, LONG)], 1, "local", 0.01)
    parts = [draw(1, (9, 4), (2, 2), dtype=torch.float64), draw(2, (6,), (2,), dtype=torch.float64)]
    measured = HeldOut(linear)
    for part in parts:
        measured.add(part.states, part.native)
    x, y = (np.concatenate(found) for found in zip(*(rows_of(part, linear, 4, False) for part in parts)))
    expected = 1 - ((x @ linear.value_map[4].numpy() - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum()
    assert float(measured.r2()[1][4]) == pytest.approx(expected, abs=1e-12)


def test_what_cannot_be_fitted_is_refused() -> None:
    batch, other = draw(0, (3,), (2,)), draw(0, (4,), (2,))
    with pytest.raises(ConfigError, match=r"singular at ridge.penalty=0: raise it, or fit on more examples"):
        fitted([batch], 2, "all", 0.0)
    with pytest.raises(SelectionError, match="same batch"):
        RidgeStatistics(RidgeMap(PAIR)).add(0, batch.states, other.native)
