"""The full-length linear map against a loop over units and positions."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from acct.errors import ConfigError, SelectionError
from acct.geometry import nearest_layers
from acct.methods import ridge_map
from acct.methods.ridge_map import RidgeMap, map_of_row, parse_ridge, ridge_name
from tests.compiler.states import PAIR, draw


def random_map(layers: int, heads: str = "local") -> RidgeMap:
    """Random maps in float64."""
    made = RidgeMap(PAIR, layers, heads).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("heads", ["local", "all"])
@pytest.mark.parametrize("numbers", [1, 40, 1 << 20])
def test_every_position_of_every_unit_is_mapped_from_its_heads(
    layers: int, heads: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ridge_map, "CPU_NUMBERS", numbers)
    states = draw(0, (11, 7), (2, 2), dtype=torch.float64).states
    made = random_map(layers, heads)
    keys, values = made(states)
    dim = PAIR.target.head_dim
    for unit, (middle, own) in enumerate(zip(PAIR.source_layers(), PAIR.source_heads())):
        read = [own] if heads == "local" else range(PAIR.source.kv_heads)
        chosen = [(layer, head) for layer in nearest_layers(middle, layers, PAIR.source.layers) for head in read]
        layer, head = divmod(unit, PAIR.target.kv_heads)
        for stored, maps, result in ((states.keys_pre, made.key_map, keys), (states.values, made.value_map, values)):
            features = torch.cat([stored[:, one, other] for one, other in chosen], dim=-1)  # [batch, context, features]
            weights = maps[unit] if heads == "local" else maps[layer][:, head * dim : (head + 1) * dim]
            torch.testing.assert_close(result[:, unit], features @ weights, rtol=0, atol=1e-12)
    low, _ = made(states, torch.float32)
    assert torch.equal(low, keys.float())


def test_all_heads_are_one_product_for_a_layer() -> None:
    made = RidgeMap(PAIR, 2, "all")
    assert made.key_map.shape == (3, 2 * 2 * 6, 3 * 10), "[target layer, m H_S d_S, H_T d_T]"
    assert made.rows.tolist() == [[0, 1, 2, 3]] * 3 and made.targets.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert RidgeMap(PAIR, 1).key_map.shape == (9, 6, 10)


def test_names_and_what_they_mean() -> None:
    for name, meaning in {"ridge_1": (1, "local"), "ridge_8": (8, "local"), "ridge_12_all": (12, "all")}.items():
        assert parse_ridge(name) == meaning and ridge_name(*meaning) == name
    assert all(parse_ridge(name) is None for name in ("ridge", "ridge_0", "ridge_x", "ridge_1_local", "bridge_1", "ridge_1_all_"))
    rows = {
        "ridge_1": "ridge_1", "ridge_8_kept": "ridge_8", "ridge_2_all_kept": "ridge_2_all", "bridge_1_kept": None, "ridge_1_kept_all": None,
    }  # fmt: skip
    assert {name: map_of_row(name) for name in rows} == rows


def test_nearest_layers_stay_inside() -> None:
    assert nearest_layers(0, 3, 5) == (0, 1, 2) and nearest_layers(4, 3, 5) == (2, 3, 4)
    assert nearest_layers(2, 3, 5) == (1, 2, 3) and nearest_layers(2, 2, 5) == (2, 3) and nearest_layers(3, 1, 5) == (3,)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 to 2 source layers, got 3"):
        RidgeMap(PAIR, 3)
    with pytest.raises(ConfigError, match="one of local, all, got 'some'"):
        RidgeMap(PAIR, 1, "some")
    states = draw(0).states
    with pytest.raises(SelectionError, match="do not fit"):
        RidgeMap(PAIR)(dataclasses.replace(states, keys_pre=states.keys_pre[:, :1]))
