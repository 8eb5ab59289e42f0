"""Files that are not what they should be: a wrong hash, a download that stopped, tokenizer files of another model, another RoPE base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from acct.errors import ModelError
from acct.models import integrity, pair
from acct.models.integrity import RECORD, check_files, check_stop_token, check_tokenizer_files, file_sha256
from acct.models.pair import load_model, load_pair, load_tokenizer
from acct.models.rotary import Rotary
from tests.models.test_pair import edit_json, saved
from tests.tiny import tiny_tokenizer

MILLION = 1e6


def recorded(folder: Path) -> Path:
    """The folder with a record of its files as they are."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": file_sha256(folder / name)} for name in names}
    (folder / RECORD).write_text(json.dumps({"upstream": "owner/name", "files": files}))
    return folder


def test_a_folder_that_fits_its_record_loads(tmp_path: Path) -> None:
    folder = recorded(saved(tmp_path, "qwen2", rope_theta=MILLION))
    adapter = load_model(folder)
    assert adapter.rotary.theta == MILLION
    width = adapter.geometry.head_dim
    assert torch.allclose(
        adapter.parts.rotary.inv_freq, MILLION ** (-torch.arange(0, width, 2) / width)
    )  # what rotates, not what is stated


@pytest.mark.parametrize(
    ("damage", "message"),
    (
        ("half", r"model\.safetensors has [\d,]+ bytes, its provenance\.json says [\d,]+: the file is not whole"),
        ("changed", r"model\.safetensors has sha256 [0-9a-f]{16}\.\.\., its provenance\.json says"),
        ("tokenizer", r"tokenizer\.json has (sha256|\d)"),
        ("missing", r"lacks model\.safetensors, which its provenance\.json names"),
        ("record", "'files' must name each file's bytes and sha256"),
    ),
)
def test_what_does_not_fit_the_record_is_refused_before_loading(damage: str, message: str, tmp_path: Path) -> None:
    folder = recorded(saved(tmp_path, "qwen2"))
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if damage == "half":
        weights.write_bytes(data[: len(data) // 2])
    elif damage == "changed":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "tokenizer":
        text = (folder / "tokenizer.json").read_text()
        (folder / "tokenizer.json").write_text(text.replace('"w9"', '"x9"'))
    elif damage == "missing":
        weights.unlink()
    else:
        (folder / RECORD).write_text('{"files": {"model.safetensors": {"bytes": 3}}}')
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_a_half_written_file_without_a_record_is_refused_too(tmp_path: Path) -> None:
    weights = saved(tmp_path, "qwen2") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    check_files(tmp_path)  # nothing says what it should be
    with pytest.raises(ModelError, match="is truncated or not a safetensors file"):
        load_model(tmp_path)


def test_a_file_is_hashed_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    before = integrity._file_sha256.cache_info()
    first = file_sha256(path)
    assert file_sha256(path) == first and integrity._file_sha256.cache_info().hits == before.hits + 1
    path.write_bytes(b"other")
    assert file_sha256(path) != first


def test_tokenizer_files_that_disagree(tmp_path: Path) -> None:
    folder = saved(tmp_path, "qwen2")
    check_tokenizer_files(folder)
    edit_json(folder / "tokenizer_config.json", added_tokens_decoder={"0": {"content": "<pad>"}, "2": {"content": "<|im_end|>"}})
    with pytest.raises(ModelError, match=r"id 2 is '<\|im_end\|>' in tokenizer_config\.json and '<eos>' in tokenizer\.json"):
        load_tokenizer(folder)


def test_a_tokenizer_that_ends_elsewhere_than_the_model(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "s", "qwen2"), saved(tmp_path / "t", "qwen2", size="target", eos_token_id=7)
    with pytest.raises(ModelError, match=r"t: the tokenizer ends text with id 2 \('<eos>'\), the model stops at \[7\]"):
        load_pair(source, target)
    check_stop_token(tiny_tokenizer(), [7, 2], "two stops")
    check_stop_token(tiny_tokenizer(), [], "none stated")


def test_the_base_in_use_must_be_the_one_that_the_file_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path, "qwen2", rope_theta=MILLION)
    edit_json(folder / "config.json", rope_theta=10_000.0)  # the older place says something else
    with pytest.raises(ModelError, match=r"states the rotary base 10000 and 1e\+06, the loaded model rotates with"):
        load_model(folder)
    edit_json(folder / "config.json", rope_theta=MILLION)
    assert load_model(folder).rotary.theta == MILLION
    real = pair.adapter_for

    def ignored(model, fingerprint=None):  # a version that does not read rope_parameters, and rotates with its default
        model.config.rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0}
        rotary = model.model.rotary_emb
        rotary.inv_freq = 10_000.0 ** (-torch.arange(0, 2 * len(rotary.inv_freq), 2) / (2 * len(rotary.inv_freq)))
        adapter = real(model, fingerprint)
        assert isinstance(adapter.rotary, Rotary)
        return adapter

    monkeypatch.setattr(pair, "adapter_for", ignored)
    with pytest.raises(ModelError, match=r"states the rotary base 1e\+06, the loaded model rotates with 10000"):
        load_model(folder)
