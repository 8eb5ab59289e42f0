"""The full-length linear map against a loop over units and positions."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from acct.errors import ConfigError, SelectionError
from acct.methods import ridge_map
from acct.methods.ridge_map import RidgeMap, nearest_layers
from tests.compiler.states import PAIR, draw


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("numbers", [1, 40, 1 << 20])
def test_every_position_of_every_unit_is_mapped_from_its_heads(layers: int, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge_map, "CPU_NUMBERS", numbers)
    states = draw(0, (11, 7), (2, 2), dtype=torch.float64).states
    made = RidgeMap(PAIR, layers).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    keys, values = made(states)
    for unit, (middle, head) in enumerate(zip(PAIR.source_layers(), PAIR.source_heads())):
        chosen = nearest_layers(middle, layers, PAIR.source.layers)
        for stored, maps, result in ((states.keys_pre, made.key_map, keys), (states.values, made.value_map, values)):
            features = torch.cat([stored[:, layer, head] for layer in chosen], dim=-1)  # [batch, context, m * dim]
            torch.testing.assert_close(result[:, unit], features @ maps[unit], rtol=0, atol=1e-12)
    low, _ = made(states, torch.float32)
    assert torch.equal(low, keys.float())


def test_nearest_layers_stay_inside() -> None:
    assert nearest_layers(0, 3, 5) == (0, 1, 2) and nearest_layers(4, 3, 5) == (2, 3, 4)
    assert nearest_layers(2, 3, 5) == (1, 2, 3) and nearest_layers(2, 2, 5) == (2, 3) and nearest_layers(3, 1, 5) == (3,)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 to 2 source layers, got 3"):
        RidgeMap(PAIR, 3)
    states = draw(0).states
    with pytest.raises(SelectionError, match="do not fit"):
        RidgeMap(PAIR)(dataclasses.replace(states, keys_pre=states.keys_pre[:, :1]))
