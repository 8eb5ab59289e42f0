"""Scores against the slow twin, independence of padding, batch and blocks; ranking; parameter count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acct.cartographer import Cartographer, CartographerShape, position_features, rank_prefix, ranks_of
from acct.errors import ConfigError, InputError, ModelError
from acct.geometry import ModelGeometry, PairGeometry
from tests.reference import cartographer as reference
from tests.tolerances import SCORES

SOURCE = ModelGeometry("llama", layers=2, kv_heads=2, query_heads=4, head_dim=8, hidden=24, vocabulary=50)
TARGET = ModelGeometry("llama", layers=3, kv_heads=5, query_heads=10, head_dim=4, hidden=40, vocabulary=50)
PAIR = PairGeometry(SOURCE, TARGET)


def build(seed: int = 0, **changes) -> Cartographer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = Cartographer(PAIR, CartographerShape(**{"width": 12, "attention_width": 7, "code_width": 5, **changes}))
        for parameter in module.parameters():  # no weight at its special starting value
            torch.nn.init.normal_(parameter, std=0.4)
    return module.eval()


def draw(lengths: list[int], query_lengths: list[int], seed: int = 1) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(len(lengths), max(lengths) + 2, 24, generator=generator)
    query = torch.randn(len(lengths), max(query_lengths) + 1, 24, generator=generator)
    return context, torch.tensor(lengths), query, torch.tensor(query_lengths)


def test_scores_and_their_gradients_equal_the_slow_twin() -> None:
    module = build()
    context, lengths, query, query_lengths = draw([9, 6], [4, 1])
    scores = module(context, lengths, query, query_lengths)
    assert scores.shape == (2, 15, 11)
    weight = torch.randn(15, 9, generator=torch.Generator().manual_seed(2))
    ours = torch.autograd.grad((scores[0, :, :9] * weight).sum(), list(module.parameters()))
    state = {name: value.detach().double().requires_grad_() for name, value in module.named_parameters()}
    slow = reference.scores(state, 5, context[0, :9], query[0, :4])
    theirs = torch.autograd.grad((slow * weight).sum(), list(state.values()))
    torch.testing.assert_close(scores[0, :, :9].double(), slow, atol=SCORES, rtol=0)
    for name, a, b in zip(state, ours, theirs):
        torch.testing.assert_close(a.double(), b, atol=2e-5, rtol=1e-4, msg=name)
    torch.testing.assert_close(
        scores[1, :, :6].double(), reference.scores(module.state_dict(), 5, context[1, :6], query[1, :1]), atol=SCORES, rtol=0
    )


def test_a_row_does_not_see_its_batch_nor_garbage_in_padding() -> None:
    module = build()
    context, lengths, query, query_lengths = draw([9, 4, 7], [3, 5, 1])
    together = module(context, lengths, query, query_lengths)
    for row, (n, q) in enumerate(zip(lengths.tolist(), query_lengths.tolist())):
        alone = module(context[row : row + 1, :n], lengths[row : row + 1], query[row : row + 1, :q], query_lengths[row : row + 1])
        torch.testing.assert_close(together[row, :, :n], alone[0], atol=SCORES, rtol=0)
    context[1, 4:], query[1, 5:] = 1e4, -1e4
    assert torch.equal(module(context, lengths, query, query_lengths)[1, :, :4], together[1, :, :4])


def test_blocks_and_chosen_units_give_the_same_numbers() -> None:
    module = build()
    inputs = draw([9, 4], [3, 2])
    scores = module(*inputs)
    for block in (1, 4, 15):
        torch.testing.assert_close(module(*inputs, block=block), scores, atol=SCORES, rtol=0)
    chosen = torch.tensor([[3, 14, 0], [7, 7, 2]])
    picked = module(*inputs, units=chosen)
    for row in range(2):
        torch.testing.assert_close(picked[row], scores[row, chosen[row]], atol=SCORES, rtol=0)
    torch.testing.assert_close(module(*inputs, units=torch.tensor([1, 5])), scores[:, [1, 5]], atol=SCORES, rtol=0)


def test_no_tensor_of_units_by_context_by_width_is_held_at_a_long_context() -> None:
    module = build(attention_width=64)
    context, lengths, query, query_lengths = draw([6000], [3])
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.untyped_storage().nbytes() // out.element_size())
            return out

    with torch.no_grad(), Watch():
        module(context, lengths, query, query_lengths)
    assert largest <= 6002 * 64 < 15 * 6002 * 64


def test_parameters_equal_the_closed_form() -> None:
    for shape in (CartographerShape(12, 7, 5), CartographerShape(32, 16, 8, query_slots=3, position_frequencies=2)):
        assert sum(p.numel() for p in Cartographer(PAIR, shape).parameters()) == shape.parameters(PAIR)


def test_at_the_start_units_agree_and_slots_are_what_was_read() -> None:
    module = Cartographer(PAIR, CartographerShape(12, 7, 5))
    scores = module(*draw([9, 4], [3, 2]))
    torch.testing.assert_close(scores, scores[:, :1].expand_as(scores), atol=SCORES, rtol=0)
    read = torch.randn(2, 4, 7)
    torch.testing.assert_close(module.modulated_slots(read, torch.arange(15)[None])[:, 3], read, atol=SCORES, rtol=0)
    scores.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())


def test_dropout_acts_in_training_only() -> None:
    module, inputs = build(dropout=0.5), draw([5], [2])
    assert torch.equal(module(*inputs), module(*inputs))
    assert not torch.equal(module.train()(*inputs), module(*inputs))


def test_position_features_by_hand() -> None:
    phi = position_features(torch.tensor([4]), 4)
    assert phi.shape == (1, 4, 10)
    half = 0.5**0.5
    expected = torch.tensor([0.25, 0.5, half, 1.0, 0.0, 0.0, half, 0.0, -1.0, 1.0])
    torch.testing.assert_close(phi[0, 1], expected, atol=1e-6, rtol=0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.data())
def test_ranking_is_stable_descending_over_the_prefix_only(values: list[int], data: st.DataObject) -> None:
    prefix = data.draw(st.integers(0, len(values)))
    scores = torch.tensor(values, dtype=torch.float32)[None, None]
    order = rank_prefix(scores, torch.tensor([prefix]))[0, 0].tolist()
    assert order == sorted(range(prefix), key=lambda i: (-values[i], i)) + list(range(prefix, len(values)))
    ranks = ranks_of(torch.tensor([[order]]))[0, 0].tolist()
    assert all(order[rank] == position for position, rank in enumerate(ranks))


def test_nan_scores_are_refused_in_the_prefix_and_ignored_beyond() -> None:
    scores = torch.tensor([[[0.0, 1.0, float("nan")]]])
    assert rank_prefix(scores, torch.tensor([2])).tolist() == [[[1, 0, 2]]]
    with pytest.raises(ModelError, match="NaN"):
        rank_prefix(scores, torch.tensor([3]))


def test_empty_contexts_and_queries_and_bad_widths_are_refused() -> None:
    context, lengths, query, query_lengths = draw([3, 2], [2, 2])
    with pytest.raises(InputError, match="example 1 has no context tokens"):
        build()(context, torch.tensor([3, 0]), query, query_lengths)
    with pytest.raises(InputError, match="example 0 has no query tokens"):
        build()(context, lengths, query, torch.tensor([0, 1]))
    with pytest.raises(ConfigError, match="width must be at least 1"):
        CartographerShape(0, 4, 4)
