"""Qwen3: keys and queries before RoPE are the outputs of the per-head norms; the raw projection is not the key."""

from __future__ import annotations

from typing import ClassVar, final

from transformers import PreTrainedModel

from acct.models.adapter import ModelAdapter, Parts, parts_of


@final
class Qwen3Adapter(ModelAdapter):
    """Qwen3ForCausalLM."""

    family: ClassVar[str] = "qwen3"

    def _parts(self, model: PreTrainedModel) -> Parts:
        return parts_of(model, keys="k_norm", queries="q_norm")
