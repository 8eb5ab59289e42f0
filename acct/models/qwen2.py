"""Qwen2: keys and queries before RoPE are the outputs of the projections, biases included."""

from __future__ import annotations

from typing import ClassVar, final

from transformers import PreTrainedModel

from acct.models.adapter import ModelAdapter, Parts, parts_of


@final
class Qwen2Adapter(ModelAdapter):
    """Qwen2ForCausalLM."""

    family: ClassVar[str] = "qwen2"

    def _parts(self, model: PreTrainedModel) -> Parts:
        return parts_of(model, keys="k_proj", queries="q_proj")
