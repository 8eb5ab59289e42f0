"""The residual against its slow twin: values and gradients; padding, conditions and structure."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from acct.compiler.residual import CONDITIONS, conditions
from acct.errors import ConfigError, SelectionError
from acct.selection import batch_index, full_selection, rows, slots_of_rows, unit_index
from acct.types import SourceStates
from tests.compiler.states import PAIR, draw, residual
from tests.reference.residual import corrections


@pytest.mark.parametrize(
    "options",
    [{}, {"input_norm": "rms", "input_bias": True}, {"memory_norm": False, "depth": 1}, {"head_width": 12, "latents": 1}],
)
def test_values_and_gradients_equal_the_twin(options: dict[str, object]) -> None:
    """Odd lengths, N below the tail, a unit without ranked slots, widths that differ on both sides."""
    batch = draw(2, (7, 2, 11), (1, 1, 1), empty=(3,), extra=2)
    module = residual(1, randomise=True, **options).double()
    generator = torch.Generator().manual_seed(0)
    got = module(batch.states, batch.selection)
    expected = corrections(module, batch.states, batch.selection)
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in expected]
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    gradients, wanted = (
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(pair, weights)), list(module.parameters())) for pair in (got, expected)
    )
    for name, a, b in zip(dict(module.named_parameters()), gradients, wanted):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


def test_padding_and_batch_mates_have_no_influence() -> None:
    batch = draw(3, (9, 4, 13), (1, 1, 1), extra=3)
    module = residual(2, randomise=True)
    lengths = batch.states.context_lengths
    padding = torch.arange(batch.states.context_hidden.shape[1]) >= lengths[:, None]
    rubbish = dataclasses.replace(
        batch.states,
        context_hidden=batch.states.context_hidden.masked_fill(padding[..., None], 1e6),
        taps=batch.states.taps.masked_fill(padding[:, None, :, None], -1e6),
    )
    together = module(batch.states, batch.selection)
    for a, b in zip(module(rubbish, batch.selection), together):
        assert torch.equal(a, b)
    for example in range(3):
        one = rows(batch.selection, [example])
        length = int(lengths[example])
        alone = SourceStates(
            batch.states.context_ids[[example], :length],
            lengths[[example]],
            batch.states.context_hidden[[example], :length],
            batch.states.taps[[example], :, :length],
            batch.states.keys_pre[[example], ..., :length, :],
            batch.states.values[[example], ..., :length, :],
        )
        slots = slots_of_rows(batch.selection, [example])
        for a, b in zip(module(alone, one), together):
            torch.testing.assert_close(a, b[slots], rtol=0, atol=2e-5)


def test_conditions_count_ranked_slots_and_flag_the_tail() -> None:
    batch = draw(5, (10, 2), (1, 1), tail=3)
    xi = conditions(batch.selection, torch.float64)
    selection = batch.selection
    for slot, (b, p) in enumerate(zip(batch_index(selection).tolist(), unit_index(selection).tolist())):
        length, tail = (10, 3) if b == 0 else (2, 2)
        position = int(selection.positions[slot])
        in_tail = position >= length - tail
        rank = 0.0 if in_tail else int(selection.ranks[slot]) / 7
        expected = [position / length, rank, (int(selection.counts[b, p]) - tail) / length, float(in_tail)]
        torch.testing.assert_close(xi[slot], torch.tensor(expected, dtype=torch.float64))
    assert bool(torch.isfinite(xi).all()) and xi.shape[1] == CONDITIONS


def test_a_slots_correction_does_not_depend_on_which_other_positions_are_selected() -> None:
    """Positions do not attend to each other: with the conditions off, a sparse selection repeats the full one's numbers."""
    batch = draw(6, (12, 8), (1, 1))
    module = residual(3, randomise=True).double()
    torch.nn.init.zeros_(module.condition_map)
    full = full_selection(batch.states.context_lengths, 3, 3)
    everywhere = module(batch.states, full)
    table = {
        (b, p, i): slot
        for slot, (b, p, i) in enumerate(zip(batch_index(full).tolist(), unit_index(full).tolist(), full.positions.tolist()))
    }
    sparse = batch.selection
    place = [table[key] for key in zip(batch_index(sparse).tolist(), unit_index(sparse).tolist(), sparse.positions.tolist())]
    for a, b in zip(module(batch.states, sparse), everywhere):
        torch.testing.assert_close(a, b[place], rtol=0, atol=1e-12)


def test_nothing_selected_gives_nothing() -> None:
    batch = draw(0, (2, 3), (1, 1), tail=0, empty=range(9))
    keys, values = residual(0)(batch.states, batch.selection)
    assert keys.shape == values.shape == (0, 10)


def test_wrong_shapes_are_named() -> None:
    batch = draw(0)
    with pytest.raises(ConfigError, match="multiple of the attention head width 32, got 48"):
        residual(width=48, head_width=32)
    with pytest.raises(ConfigError, match="none, rms"):
        residual(input_norm="layer")
    with pytest.raises(SelectionError, match="3 taps of width 20"):
        residual()(dataclasses.replace(batch.states, taps=batch.states.taps[:, :2]), batch.selection)
    assert PAIR.units == 9
