"""Growing a large model out of a small one keeps its function and makes its states linear images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from acct.micro import families
from acct.micro.alignment import alignment, gather_reading, reading_of
from acct.micro.growth import grow, rotary_places, shuffle_heads


def small_model(family: str):
    """A small model with weights far from their initial values, norms and biases included."""
    model = families.build(family, "small", 3).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.rand(parameter.shape, generator=generator) * 0.6 - 0.2)
            elif "proj" in name:
                parameter.mul_(1.5)
        model.get_input_embeddings().weight.mul_(20)  # far above the epsilon of RMSNorm, which does not scale with the width
    return model


@torch.no_grad()
def read(model: nn.Module, ids: torch.Tensor):
    with reading_of(model) as seen:
        output = model(input_ids=ids, output_hidden_states=True)
    return output.logits, gather_reading(output.hidden_states, seen, torch.ones_like(ids, dtype=torch.bool))


@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_grown_model_is_the_same_function(family):
    small = small_model(family)
    large = grow(small, family).eval()
    ids = torch.randint(6, 140, (2, 300), generator=torch.Generator().manual_seed(0))
    narrow, own = read(small, ids)
    wide, grown = read(large, ids)
    assert narrow.std() > 0.1
    torch.testing.assert_close(wide, narrow, atol=2e-4, rtol=2e-4)
    for one, other in ((own, grown), (grown, own)):
        hidden, states = alignment(one, other)
        assert hidden < 1e-3 and states < 1e-2  # not zero: the map's ridge, over features of unequal size


@pytest.mark.parametrize("family", families.FAMILIES)
def test_shuffled_heads_are_the_same_function_in_another_order(family):
    large = grow(small_model(family), family).eval()
    ids = torch.randint(6, 140, (2, 60), generator=torch.Generator().manual_seed(0))
    logits, before = read(large, ids)
    shuffle_heads(large, 5)
    same, after = read(large, ids)
    torch.testing.assert_close(same, logits, atol=1e-4, rtol=1e-4)
    orders = []
    for own, was in zip(after.keys, before.keys):
        found = [[bool(torch.allclose(own[:, h], was[:, g], atol=1e-4)) for g in range(own.shape[1])] for h in range(own.shape[1])]
        assert all(any(row) for row in found) and all(any(column) for column in zip(*found))
        orders.append(tuple(map(tuple, found)))
    assert len(set(orders)) > 1


def test_a_wider_head_holds_the_rotary_frequencies_of_the_narrow_one():
    small, large = (families.build("llama", size, 0) for size in families.SIZES)
    places = rotary_places(small, large)
    assert places.unique().numel() == 32 and (places[16:] == places[:16] + 20).all()
    torch.testing.assert_close(large.model.rotary_emb.inv_freq[places[:16]], small.model.rotary_emb.inv_freq)
    same = families.build("qwen3", "small", 0)
    assert rotary_places(same, same).tolist() == list(range(32))
    del large.model.rotary_emb.inv_freq
    large.model.rotary_emb.inv_freq = small.model.rotary_emb.inv_freq[:4]
    with pytest.raises(ValueError, match="same nearest frequency"):
        rotary_places(small, large)


def test_a_model_does_not_grow_into_a_smaller_one():
    with pytest.raises(ValueError, match="no width may fall"):
        grow(families.build("llama", "large", 0), "qwen3")
