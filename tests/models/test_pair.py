"""Loading: what a folder can have wrong with it, each with its message; both sides of a pair."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from acct.errors import ConfigError, ModelError, VocabularyError
from acct.models.adapter import Capture
from acct.models.pair import Pair, load_model, load_pair, load_tokenizer
from acct.models.registry import adapter_for
from tests.tiny import FAMILIES, ROPE_KINDS, tiny_batch, tiny_model, tiny_pair, tiny_tokenizer


def saved(folder: Path, family: str = "qwen3", size: str = "source", tokenizer: bool = True, **options: object) -> Path:
    tiny_model(family, size=size, **options).save_pretrained(folder)
    if tokenizer:
        tiny_tokenizer().save_pretrained(folder)
    return folder


def edit_json(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def edit_tensor(folder: Path, name: str, value: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    tensors = {key: tensor.clone() for key, tensor in load_file(path).items() if key != name}
    save_file(tensors if value is None else {**tensors, name: value}, path, metadata={"format": "pt"})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_model_equals_the_saved_one(tmp_path: Path, family: str) -> None:
    adapter = load_model(saved(tmp_path, family))
    ids, _ = tiny_batch().joined()
    assert torch.equal(adapter.forward(ids, logits="all").logits, tiny_model(family)(ids).logits)
    assert not adapter.model.training and not any(p.requires_grad for p in adapter.model.parameters())
    assert adapter.fingerprint == load_model(str(tmp_path)).fingerprint != adapter_for(tiny_model(family)).fingerprint


@pytest.mark.parametrize("rope", ROPE_KINDS)
def test_bfloat16_keeps_rotary_frequencies_and_exact_keys(tmp_path: Path, rope: str) -> None:
    adapter = load_model(saved(tmp_path, "llama", rope=rope), dtype="bfloat16")
    assert adapter.dtype == torch.bfloat16 and adapter.parts.rotary.inv_freq.dtype == torch.float32
    ids = tiny_batch(1, context=(30,), query=(5,)).joined()[0]
    own = adapter.model(ids, use_cache=True).past_key_values
    keys = adapter.rotate(adapter.forward(ids, capture=Capture(keys=True)).keys_pre, torch.arange(35))
    assert keys.dtype == torch.bfloat16 and torch.equal(keys[:, 1], own.layers[1].keys)


def test_a_pair_has_unequal_sides_and_one_vocabulary(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "s"), saved(tmp_path / "t", size="target")
    pair = load_pair(source, target)
    assert pair.geometry.units == 9 and pair.geometry.source_heads()[:3] == (0, 1, 0)
    assert pair.interface_device.type == "cpu" and pair.tokenizer("w5 w9").input_ids == [5, 9]
    assert isinstance(tiny_pair("llama"), Pair)


def test_pair_of_different_vocabularies_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "s"), saved(tmp_path / "t", size="target")
    tiny_tokenizer(names={7: "other"}).save_pretrained(target)
    (target / "model.safetensors").unlink()
    with pytest.raises(VocabularyError, match=r"id 7 is 'w7' in .*s and 'other' in .*t"):
        load_pair(source, target)


def test_more_tokens_than_embedding_rows_is_refused(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "s"), saved(tmp_path / "t", size="target", vocab_size=50)
    with pytest.raises(VocabularyError, match=r"id 60 is 'w60' in the tokenizer, but .*t has only 50 embedding rows"):
        load_pair(source, target)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_or_inf_in_weights_names_the_tensor(tmp_path: Path, value: float) -> None:
    name = "model.layers.1.self_attn.v_proj.weight"
    broken = tiny_model("qwen3").state_dict()[name].clone()
    broken[3, 2] = value
    edit_tensor(saved(tmp_path), name, broken)
    with pytest.raises(ModelError, match=r"'model\.layers\.1\.self_attn\.v_proj\.weight' holds 1 NaN or Inf among 640"):
        load_model(tmp_path)


def test_truncated_and_missing_files(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated"):
        load_model(folder)
    weights.unlink()
    with pytest.raises(ModelError, match=r"lacks model\.safetensors"):
        load_model(folder)
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="Pickled weights"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_model(folder)
    with pytest.raises(ModelError, match="nor a hub id"):
        load_model(tmp_path / "nowhere" / "else")


def test_missing_shard_is_named(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    assert load_model(tmp_path).geometry.layers == 2
    shard.unlink()
    with pytest.raises(ModelError, match=f"lacks {shard.name}"):
        load_model(tmp_path)


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    name = "model.layers.0.self_attn.k_norm.weight"
    edit_tensor(folder, name, torch.ones(9))
    with pytest.raises(ModelError, match=r"cannot be loaded as a qwen3 model|has another shape"):
        load_model(folder)
    edit_tensor(folder, name, None)
    with pytest.raises(ModelError, match=r"lacks 1 tensors .* first 'model\.layers\.0\.self_attn\.k_norm\.weight'"):
        load_model(folder)


def test_config_without_theta_is_an_error_not_a_default(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    edit_json(folder / "config.json", rope_parameters=None)
    with pytest.raises(ModelError, match="states no rope_theta"):
        load_model(folder)
    edit_json(folder / "config.json", rope_theta=500.0)  # the older place
    assert load_model(folder).rotary.theta == 500.0


def test_unknown_family_dtype_and_device(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    with pytest.raises(ConfigError, match="one of float32, bfloat16, float16, got 'int8'"):
        load_model(folder, dtype="int8")
    with pytest.raises(ConfigError, match="device 'cuda:99' is not here"):
        load_model(folder, device="cuda:99")
    with pytest.raises(ConfigError, match="like 'cpu'"):
        load_model(folder, device="abacus")
    edit_json(folder / "config.json", model_type="qwen33")
    with pytest.raises(ModelError, match=r"unknown model family 'qwen33'.*Did you mean 'qwen3'"):
        load_model(folder)


def test_unused_tensors_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = saved(tmp_path)
    path = folder / "model.safetensors"
    tensors = {key: tensor.clone() for key, tensor in load_file(path).items()}
    save_file({**tensors, "extra": torch.ones(2)}, path, metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING, "acct"):
        load_model(folder)
    assert "1 tensors that the model does not use, first 'extra'" in caplog.text


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no tokenizer\.json"):
        load_tokenizer(saved(tmp_path, tokenizer=False))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="no readable tokenizer"):
        load_tokenizer(tmp_path)


def test_chat_template_and_tokens_survive(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}w4 {{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.apply_chat_template([{"role": "user", "content": "w9"}], tokenize=False) == "w4 w9"
    assert loaded.get_vocab() == tokenizer.get_vocab() and loaded.eos_token_id == 2
