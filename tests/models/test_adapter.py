"""Adapters against transformers itself: logits, hidden states, cached keys, and no trace after a forward pass."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from acct.errors import InputError, ModelError, UnknownName
from acct.models import compat
from acct.models.adapter import Capture
from acct.models.registry import adapter_for
from tests.tiny import FAMILIES, ROPE_KINDS, tiny_batch, tiny_model
from tests.tolerances import BATCHED_STATES, LOGITS, ROTATION

EVERYTHING = Capture(hidden=True, keys=True, queries=True)


def hook_count(model: torch.nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_geometry_names_the_axes_that_differ(family: str) -> None:
    source, target = (adapter_for(tiny_model(family, size=size)).geometry for size in ("source", "target"))
    assert (source.family, source.layers, source.kv_heads, source.query_heads, source.head_dim) == (family, 2, 2, 4, 8)
    assert (target.layers, target.kv_heads, target.query_heads, target.head_dim, target.units) == (3, 3, 9, 16, 9)
    assert source.hidden != target.hidden and source.vocabulary == target.vocabulary == 61


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", ["source", "target"])
def test_states_equal_the_models_own_outputs(family: str, size: str) -> None:
    model = tiny_model(family, size=size)
    adapter = adapter_for(model)
    ids, _ = tiny_batch(1).joined()
    own = model(ids, output_hidden_states=True, use_cache=True)
    states = adapter.forward(ids, capture=EVERYTHING, logits="all")
    assert torch.equal(states.logits, own.logits)
    assert len(states.hidden) == adapter.geometry.layers + 1
    for ours, theirs in zip(states.hidden, own.hidden_states, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(states.hidden[0], model.model.embed_tokens(ids))  # index 0: embeddings
    assert torch.equal(adapter.logits_of(states.hidden[-1]), own.logits)  # last: after the final norm
    some = adapter.forward(ids, capture=Capture(hidden=(1, adapter.geometry.layers))).hidden
    assert torch.equal(some[0], own.hidden_states[1]) and torch.equal(some[1], own.hidden_states[-1])
    for layer in range(adapter.geometry.layers):
        assert torch.equal(states.values[:, layer], own.past_key_values.layers[layer].values)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rope", ROPE_KINDS)
@pytest.mark.parametrize("size", ["source", "target"])
def test_rotated_keys_equal_the_models_cached_keys(family: str, rope: str, size: str) -> None:
    model = tiny_model(family, size=size, rope=rope)
    adapter = adapter_for(model)
    ids, _ = tiny_batch(2, context=(31, 31), query=(9, 9)).joined()  # past the native window of 24
    own = model(ids, use_cache=True).past_key_values
    states = adapter.forward(ids, capture=EVERYTHING)
    positions = torch.arange(ids.shape[1])
    keys = adapter.rotate(states.keys_pre, positions)
    for layer in range(adapter.geometry.layers):
        assert (keys[:, layer] - own.layers[layer].keys).abs().max() <= ROTATION
    packed = states.keys_pre[0, 1, 1]  # [slot, dim] at shuffled positions
    order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(0))
    shuffled = adapter.rotate(packed[order], positions[order], total_lengths=ids.shape[1])
    assert (shuffled - own.layers[1].keys[0, 1][order]).abs().max() <= ROTATION


@pytest.mark.parametrize("family", FAMILIES)
def test_queries_and_keys_give_the_models_attention(family: str) -> None:
    model = tiny_model(family, size="target", rope="yarn")
    model.set_attn_implementation("eager")
    adapter = adapter_for(model)
    ids = tiny_batch(3).joined()[0][:1]
    positions = torch.arange(ids.shape[1])
    states = adapter.forward(ids, capture=EVERYTHING)
    own = model(ids, output_attentions=True).attentions
    shape = adapter.geometry
    queries = adapter.rotate(states.queries_pre, positions).unflatten(2, (shape.kv_heads, shape.queries_per_head))
    scores = torch.einsum("blhgid,blhjd->blhgij", queries, adapter.rotate(states.keys_pre, positions)) * adapter.scaling
    scores = scores.masked_fill(~torch.ones(len(positions), len(positions), dtype=torch.bool).tril(), float("-inf"))
    for layer in range(shape.layers):
        assert (scores.softmax(-1)[:, layer].flatten(1, 2) - own[layer]).abs().max() < 1e-5
    asked = torch.tensor([[4, 2, 9]])
    there = adapter.forward(ids, capture=Capture(queries=True), query_positions=asked).queries_pre
    assert torch.equal(there, states.queries_pre[..., asked[0], :])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rope", ["default", "dynamic"])
def test_right_padding_is_harmless(family: str, rope: str) -> None:
    adapter = adapter_for(tiny_model(family, rope=rope))
    ids, lengths = tiny_batch(4, context=(7, 26, 15), query=(3, 8, 2)).joined()
    together = adapter.forward(ids, lengths, EVERYTHING, logits="all")
    for row, length in enumerate(lengths.tolist()):
        alone = adapter.forward(ids[row : row + 1, :length], capture=EVERYTHING, logits="all")
        assert (together.logits[row, :length] - alone.logits[0]).abs().max() <= LOGITS
        assert (together.keys_pre[row, :, :, :length] - alone.keys_pre[0]).abs().max() <= BATCHED_STATES


def test_dynamic_rope_does_not_remember_a_longer_run() -> None:
    model = tiny_model("llama", rope="dynamic")
    adapter = adapter_for(model)
    short = tiny_batch(5, context=(10,), query=(5,)).joined()[0]
    fresh = adapter.forward(short, logits="all").logits
    model(tiny_batch(6, context=(40,), query=(20,)).joined()[0])  # transformers keeps the grown frequencies
    assert torch.equal(adapter.forward(short, logits="all").logits, fresh)


def test_hooks_exist_inside_the_call_only_even_after_an_exception() -> None:
    model = tiny_model("qwen3", rope="dynamic")
    adapter = adapter_for(model)
    ids, _ = tiny_batch(7).joined()
    before = hook_count(model)
    adapter.forward(ids, capture=EVERYTHING)
    assert hook_count(model) == before

    def fail(*_: object) -> None:
        assert hook_count(model) > before + 1
        raise RuntimeError("stop here")

    handle = model.model.layers[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="stop here"):
        adapter.forward(ids, capture=EVERYTHING)
    handle.remove()
    assert hook_count(model) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_ends_where_everything_asked_for_is_recorded(family: str) -> None:
    model = tiny_model(family, size="target")
    adapter, (ids, _) = adapter_for(model), tiny_batch(7).joined()
    before, feed_forwards = hook_count(model), []
    for layer, block in enumerate(model.model.layers):
        block.mlp.register_forward_hook(lambda *_, layer=layer: feed_forwards.append(layer))
    whole = adapter.forward(ids, capture=EVERYTHING)
    assert feed_forwards == [0, 1, 2]
    for capture, ran in ((Capture(keys=True, queries=True), [0, 1]), (Capture(hidden=(1,)), [0]), (Capture(), [0, 1, 2])):
        feed_forwards.clear()
        part = adapter.forward(ids, capture=capture)
        assert feed_forwards == ran
        if capture.keys:
            assert all(torch.equal(getattr(part, name), getattr(whole, name)) for name in ("keys_pre", "values", "queries_pre"))
    assert hook_count(model) == before + 3
    assert adapter.forward(ids, capture=Capture(keys=True), logits="all").logits is not None


def test_a_foreign_attention_function_is_put_back() -> None:
    model = tiny_model("llama")
    adapter = adapter_for(model)
    ids, _ = tiny_batch(8).joined()
    expected = adapter.forward(ids, logits="all").logits
    model.config._attn_implementation = "acct_mount"
    assert torch.equal(adapter.forward(ids, logits="all").logits, expected)
    assert model.config._attn_implementation == "acct_mount"
    with pytest.raises(ZeroDivisionError), compat.stock_attention(model, "eager"):
        raise ZeroDivisionError
    assert model.config._attn_implementation == "acct_mount"


def test_an_id_outside_the_vocabulary_is_named() -> None:
    adapter = adapter_for(tiny_model("llama"))
    with pytest.raises(InputError, match=r"id 61 at index \(0, 1\).*\[0, 61\)"):
        adapter.forward(torch.tensor([[3, 61, -2]]))
    with pytest.raises(InputError, match="id -1"):
        adapter.forward(torch.tensor([[3, -1]]))


def test_unknown_family_and_sliding_windows_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown model family 'gpt2'"):
        adapter_for(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=11)))
    sliding = tiny_model("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(ModelError, match="layer 1 has sliding-window attention"):
        adapter_for(sliding)


def test_fingerprint_follows_weights_and_settings() -> None:
    first = adapter_for(tiny_model("llama")).fingerprint
    assert first == adapter_for(tiny_model("llama")).fingerprint and len(first) == 64
    assert first != adapter_for(tiny_model("llama", seed=1)).fingerprint
    assert first != adapter_for(tiny_model("llama", rope_theta=600.0)).fingerprint
    assert adapter_for(tiny_model("llama"), lambda: "given").fingerprint == "given"
