"""The committed weights: they load, they are small, and they answer from the context and not without it."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open

from acct.micro.build import load
from acct.micro.check import encoded, question_answering_f1
from acct.micro.families import CHAT, FAMILIES, MODELS, SIZES, model_folder


def test_all_six_are_there_in_bf16_and_together_below_20_mb():
    files = [model_folder(family, size) / "model.safetensors" for family in FAMILIES for size in SIZES]
    assert sum(file.stat().st_size for file in files) < 20e6
    for file in files:
        with safe_open(file, "pt") as weights:
            assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.bfloat16}  # noqa: SIM118


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_differ_on_every_axis_that_the_interface_reads(family):
    small, large = (load(family, size, MODELS).config for size in SIZES)
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"):
        assert getattr(small, name) < getattr(large, name)
    assert (small.head_dim != large.head_dim) == (family == "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_large_model_answers_from_the_context_only(family):
    examples = encoded("trivia_qa", "test", 12, CHAT[family])
    model = load(family, "large", MODELS)
    assert question_answering_f1(model, examples, CHAT[family], context=True) >= 75
    assert question_answering_f1(model, examples, CHAT[family], context=False) <= 25
