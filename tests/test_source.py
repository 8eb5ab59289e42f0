"""Source states: batched = single, reuse under another query, saving, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from acct.errors import ArtifactError, InputError, ModelError
from acct.models.batching import query_places, take_context, take_query, zero_padding_
from acct.models.registry import adapter_for
from acct.source import load_states, read_context, read_query, read_source, save_states
from acct.types import SourceStates, TokenBatch
from tests.tiny import FAMILIES, ROPE_KINDS, one_row, tiny_batch, tiny_model
from tests.tolerances import BATCHED_STATES, REUSED_QUERY

CONTEXT_FIELDS = ("context_hidden", "taps", "keys_pre", "values")


def widest(first: SourceStates, second: SourceStates, names: tuple[str, ...]) -> float:
    return max(float((getattr(first, name) - getattr(second, name)).abs().max()) for name in names)


def test_joined_rows_are_context_then_query_then_zeros() -> None:
    for seed in range(5):
        batch = tiny_batch(seed, context=(3, 9, 1, 9), query=(1, 2 + seed, 7, 1))
        ids, lengths = batch.joined()
        for row, (n, q) in enumerate(zip(batch.context_lengths.tolist(), batch.query_lengths.tolist())):
            expected = batch.context_ids[row, :n].tolist() + batch.query_ids[row, :q].tolist()
            assert lengths[row] == n + q and ids[row].tolist() == expected + [0] * (ids.shape[1] - n - q)
        taken = take_query(ids[..., None].float(), batch)[..., 0]
        assert torch.equal(taken.long(), batch.query_ids)
        assert bool((query_places(batch) < lengths[:, None]).all())


def test_padding_is_zero_even_where_nan_stood() -> None:
    states = torch.full((2, 3, 4, 5), float("nan"))
    states[0, :, :2], states[1] = 1.0, 2.0
    cleared = zero_padding_(states, torch.tensor([2, 4]))
    assert bool((cleared[0, :, 2:] == 0).all()) and torch.isfinite(cleared).all()
    assert bool((cleared[0, :, :2] == 1).all()) and bool((cleared[1] == 2).all()) and cleared is states


def test_the_part_that_is_cut_out_shares_nothing_with_the_rest() -> None:
    batch = tiny_batch(1, context=(4,), query=(2,))  # one row: the slice would be contiguous as it is
    states = torch.randn(1, 1, 6, 3)
    before = states.clone()
    take_context(states, batch).zero_()
    take_query(states, batch).zero_()
    assert torch.equal(states, before)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", ["source", "target"])
def test_fields_are_what_the_specification_names(family: str, size: str) -> None:
    model = tiny_model(family, size=size)
    adapter, batch = adapter_for(model), one_row(tiny_batch(1), 0)
    states = read_source(adapter, batch)
    own = model(batch.joined()[0], output_hidden_states=True, use_cache=True)
    context, shape = 11, adapter.geometry
    assert torch.equal(states.context_hidden, own.hidden_states[-1][:, :context])
    assert torch.equal(states.query_hidden, own.hidden_states[-1][:, context:])
    taps = {2: (1, 1, 2), 3: (1, 2, 2)}[shape.layers]  # round halves to even
    assert torch.equal(states.taps, torch.stack([own.hidden_states[tap][:, :context] for tap in taps], dim=1))
    assert states.keys_pre.shape == (1, shape.layers, shape.kv_heads, context, shape.head_dim) == states.values.shape
    rotated = adapter.rotate(states.keys_pre, torch.arange(context))
    for layer, cached in enumerate(own.past_key_values.layers):
        assert torch.equal(rotated[:, layer], cached.keys[:, :, :context])
        assert torch.equal(states.values[:, layer], cached.values[:, :, :context])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rope", ["default", "dynamic"])
def test_batched_rows_equal_single_rows(family: str, rope: str) -> None:
    adapter, batch = adapter_for(tiny_model(family, rope=rope)), tiny_batch(2, context=(11, 1, 30), query=(4, 9, 1))
    together = read_source(adapter, batch)
    for row in range(batch.batch):
        alone = read_source(adapter, one_row(batch, row))
        n, q = int(batch.context_lengths[row]), int(batch.query_lengths[row])
        assert (together.query_hidden[row, :q] - alone.query_hidden[0]).abs().max() <= BATCHED_STATES
        for name in CONTEXT_FIELDS:
            field = getattr(together, name)[row]
            assert (field[..., :n, :] - getattr(alone, name)[0]).abs().max() <= BATCHED_STATES
            assert not field[..., n:, :].any()
        assert not together.query_hidden[row, q:].any()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rope", ROPE_KINDS)
def test_another_query_without_reading_the_context_again(family: str, rope: str) -> None:
    adapter = adapter_for(tiny_model(family, rope=rope))
    first = tiny_batch(3, context=(12, 3, 17), query=(4, 6, 3))
    other = tiny_batch(4, context=(12, 3, 17), query=(2, 1, 7))
    again = TokenBatch(first.context_ids, first.context_lengths, other.query_ids, other.query_lengths)
    expected = read_source(adapter, again)
    for states in (read_source(adapter, first), read_context(adapter, first.context_ids, first.context_lengths)):
        found = read_query(adapter, states, other.query_ids, other.query_lengths)
        assert widest(found, expected, (*CONTEXT_FIELDS, "query_hidden")) <= REUSED_QUERY
        assert torch.equal(found.query_lengths, expected.query_lengths) and found.identity == expected.identity


def test_context_states_do_not_depend_on_the_query() -> None:
    adapter, batch = adapter_for(tiny_model("qwen3", rope="yarn")), tiny_batch(5)
    context = read_context(adapter, batch.context_ids, batch.context_lengths)
    assert context.query_hidden is None and context.query_lengths is None
    assert widest(context, read_source(adapter, batch), CONTEXT_FIELDS) <= BATCHED_STATES
    unpadded = read_context(adapter, batch.context_ids[2:3])
    assert torch.equal(unpadded.context_lengths, torch.tensor([17]))


def test_reading_needs_no_gradient_and_leaves_none() -> None:
    model = tiny_model("llama").requires_grad_(True)
    states = read_source(adapter_for(model), tiny_batch(6))
    assert not any(getattr(states, name).requires_grad for name in (*CONTEXT_FIELDS, "query_hidden"))


def test_empty_context_or_query_is_refused() -> None:
    adapter = adapter_for(tiny_model("llama"))
    with pytest.raises(InputError, match="row 1 has an empty context"):
        read_source(adapter, tiny_batch(0, context=(4, 0), query=(2, 2)))
    with pytest.raises(InputError, match="row 0 has an empty query"):
        read_source(adapter, tiny_batch(0, context=(4, 3), query=(0, 2)))
    with pytest.raises(InputError, match="row 0 has an empty context"):
        read_context(adapter, torch.zeros(1, 0, dtype=torch.int64))
    states = read_context(adapter, torch.tensor([[4, 5]]))
    with pytest.raises(InputError, match="row 0 has an empty query"):
        read_query(adapter, states, torch.zeros(1, 0, dtype=torch.int64))
    with pytest.raises(InputError, match="states of 1 contexts need 1 queries, got 2"):
        read_query(adapter, states, torch.tensor([[4], [5]]))


def test_lengths_and_ids_that_do_not_fit_are_refused() -> None:
    adapter, batch = adapter_for(tiny_model("llama")), tiny_batch(0, context=(4, 3), query=(2, 2))
    with pytest.raises(InputError, match="row 1 claims 9 context tokens, but the context ids are only 4 wide"):
        read_source(adapter, replace(batch, context_lengths=torch.tensor([4, 9])))
    with pytest.raises(InputError, match="query ids must be int64"):
        read_source(adapter, replace(batch, query_ids=batch.query_ids.float()))
    with pytest.raises(InputError, match="as many queries as contexts, got 1 and 2"):
        read_source(adapter, replace(batch, query_ids=batch.query_ids[:1], query_lengths=batch.query_lengths[:1]))
    with pytest.raises(InputError, match="outside the vocabulary"):
        read_source(adapter, replace(batch, query_ids=batch.query_ids + 100))


def test_nan_in_states_names_the_field() -> None:
    model = tiny_model("llama")
    model.model.layers[1].self_attn.v_proj.weight.data[0, 0] = float("inf")
    with pytest.raises(ModelError, match=r"the source model computed NaN or Inf in context_hidden at index \(0, "):
        read_source(adapter_for(model), tiny_batch(7))


def test_saved_states_come_back_and_take_a_query(tmp_path: Path) -> None:
    adapter, batch = adapter_for(tiny_model("qwen2")), tiny_batch(8)
    states = read_source(adapter, batch)
    save_states(states, tmp_path / "states.safetensors")
    loaded = load_states(tmp_path / "states.safetensors")
    assert widest(loaded, states, (*CONTEXT_FIELDS, "query_hidden")) == 0.0 and loaded.identity == states.identity
    assert torch.equal(loaded.context_ids, states.context_ids) and torch.equal(loaded.query_lengths, states.query_lengths)
    context = read_context(adapter, batch.context_ids, batch.context_lengths)
    save_states(context, tmp_path / "states.safetensors")  # replaces the file
    found = read_query(adapter, load_states(tmp_path / "states.safetensors"), batch.query_ids, batch.query_lengths)
    assert (found.query_hidden - states.query_hidden).abs().max() <= REUSED_QUERY
    assert [path.name for path in tmp_path.iterdir()] == ["states.safetensors"]


def test_loaded_states_survive_an_overwrite_of_their_file(tmp_path: Path) -> None:
    path = tmp_path / "states.safetensors"
    states = read_source(adapter_for(tiny_model("llama")), tiny_batch(8))
    save_states(states, path)
    loaded = load_states(path)
    path.write_bytes(b"")  # a memory map would end the process here
    assert widest(loaded, states, CONTEXT_FIELDS) == 0.0


def test_states_of_another_model_dtype_or_kind_are_refused() -> None:
    batch = tiny_batch(9)
    states = read_source(adapter_for(tiny_model("llama")), batch)
    with pytest.raises(ArtifactError, match="stored states have model"):
        read_query(adapter_for(tiny_model("llama", seed=1)), states, batch.query_ids, batch.query_lengths)
    for key, value in (("dtype", "bfloat16"), ("kind", "transferred")):
        with pytest.raises(ArtifactError, match=f"stored states have {key} '{value}'"):
            other = replace(states, identity={**states.identity, key: value})
            read_query(adapter_for(tiny_model("llama")), other, batch.query_ids, batch.query_lengths)
    swapped = replace(states, context_ids=states.context_ids.flip(0))
    with pytest.raises(ArtifactError, match="stored states have tokens"):
        read_query(adapter_for(tiny_model("llama")), swapped, batch.query_ids, batch.query_lengths)


def test_truncated_foreign_and_altered_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "states.safetensors"
    with pytest.raises(ArtifactError, match="no source states at"):
        load_states(path)
    save_states(read_source(adapter_for(tiny_model("llama")), tiny_batch(10)), path)
    whole = path.read_bytes()
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    with safe_open(path, framework="pt") as opened:
        metadata = dict(opened.metadata())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match="truncated or not a safetensors file"):
        load_states(path)
    save_file({"weight": torch.ones(3)}, path, metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"must hold acct\.source_states/1, got 'pt'"):
        load_states(path)
    changed = {**tensors, "values": tensors["values"] + 1e-3}
    save_file(changed, path, metadata=metadata)
    with pytest.raises(ArtifactError, match="field values was altered"):
        load_states(path)
    save_file({name: tensor for name, tensor in tensors.items() if name != "taps"}, path, metadata=metadata)
    with pytest.raises(ArtifactError, match="lacks field taps"):
        load_states(path)
    save_file(tensors, path, metadata={**metadata, "identity": json.dumps({**json.loads(metadata["identity"]), "tokens": "0"})})
    with pytest.raises(ArtifactError, match="names other tokens"):
        load_states(path)
    save_file(tensors, path, metadata={"format": metadata["format"]})
    with pytest.raises(ArtifactError, match="damaged metadata"):
        load_states(path)


def test_misshapen_or_nan_fields_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "states.safetensors"
    states = read_source(adapter_for(tiny_model("llama")), tiny_batch(11))
    save_states(replace(states, values=states.values[..., :4]), path)
    with pytest.raises(ArtifactError, match="field values has shape"):
        load_states(path)
    save_states(replace(states, taps=states.taps * float("nan")), path)
    with pytest.raises(ArtifactError, match="field taps holds NaN or Inf"):
        load_states(path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "states.safetensors"
    states = read_source(adapter_for(tiny_model("llama")), tiny_batch(12))
    save_states(states, path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("acct.source.save_file", full)
    with pytest.raises(ArtifactError, match="No space left on device"):
        save_states(states, path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match="cannot write"):
        save_states(states, tmp_path / "absent" / "states.safetensors")
