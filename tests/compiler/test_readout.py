"""The closed-form start of the readout against weighted ridge regression, slot by slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from acct.compiler.grouped import UnitGroups
from acct.compiler.readout import ReadoutStatistics, start_readout
from acct.compiler.residual import Residual, ResidualShape
from acct.errors import ConfigError
from acct.selection import gather_native, unit_index
from tests.compiler.states import PAIR, Batch, draw

WIDTH = 32


def residual() -> Residual:
    shape = ResidualShape(20, PAIR.units, 10, width=WIDTH, feed_forward_width=32, depth=1, latents=3, branch_start="zero")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Residual(shape)


def accumulated(made: Residual, batches: list[Batch]) -> tuple[ReadoutStatistics, list[tuple[np.ndarray, ...]]]:
    """Statistics, and of every slot: unit, z, what is left and native vectors of keys and of values. The Bridge gives zero here."""
    statistics, slots = ReadoutStatistics(PAIR.units, WIDTH, 10), []
    for batch in batches:
        native = gather_native(batch.selection, batch.native)
        with torch.no_grad():
            z, row = made.trunk(batch.states, batch.selection)
        assert row is not None
        statistics.add(z, row, UnitGroups.of(batch.selection), native, native)
        slots.append((unit_index(batch.selection).numpy(), z[row].double().numpy(), *(part.double().numpy() for part in native)))
    return statistics, slots


def test_weighted_ridge_with_an_unpenalised_bias() -> None:
    made = residual()
    statistics, slots = accumulated(made, [draw(seed, (40, 60, 50), (1, 1, 1), tail=9, empty=(4,)) for seed in range(4)])
    start_readout(made, statistics, 0.05)
    for unit in range(PAIR.units):
        own = [tuple(part[units == unit] for part in parts) for units, *parts in slots]
        z, keys, values = (np.concatenate(parts) for parts in zip(*own))
        for y, readout, bias in ((keys, made.key_readout, made.key_bias), (values, made.value_readout, made.value_bias)):
            weight = 1 / np.sqrt(np.square(y).mean(1, keepdims=True) + 1e-6)
            x = np.concatenate([z, np.ones((len(z), 1))], 1) * weight
            penalty = 0.05 * np.square(x[:, :-1]).sum() / WIDTH
            rows = np.concatenate([x, np.sqrt(penalty) * np.eye(WIDTH, WIDTH + 1)])
            fitted = np.linalg.lstsq(rows, np.concatenate([y * weight, np.zeros((WIDTH, 10))]), rcond=None)[0]
            np.testing.assert_allclose(readout[unit].detach().numpy(), fitted[:-1], atol=1e-6)
            np.testing.assert_allclose(bias[unit].detach().numpy(), fitted[-1], atol=1e-6)


def test_units_without_a_slot_keep_zeros_and_too_few_slots_need_a_penalty() -> None:
    made = residual()
    statistics, _ = accumulated(made, [draw(1, (12,), (1,), tail=0, empty=(2,))])
    with pytest.raises(ConfigError, match=r"singular at compiler\.readout_ridge=0"):
        statistics.solve(0.0)
    start_readout(made, statistics, 1e-2)
    assert not made.key_readout[2].any() and not made.value_bias[2].any() and bool(made.key_readout[1].any())
