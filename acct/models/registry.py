"""Model families by the `model_type` of their configuration. A new family is one file, one line here and one test."""

from __future__ import annotations

from collections.abc import Callable

from transformers import PreTrainedModel

from acct.errors import UnknownName
from acct.models.adapter import ModelAdapter
from acct.models.llama import LlamaAdapter
from acct.models.qwen2 import Qwen2Adapter
from acct.models.qwen3 import Qwen3Adapter

ADAPTERS: dict[str, type[ModelAdapter]] = {"llama": LlamaAdapter, "qwen2": Qwen2Adapter, "qwen3": Qwen3Adapter}


def adapter_for(model: PreTrainedModel, fingerprint: Callable[[], str] | None = None) -> ModelAdapter:
    """The adapter of a model's family.

    Args:
        fingerprint: computes the identity of the weights when first asked; None hashes the parameters.
    Raises:
        UnknownName: no adapter for this `model_type`.
        ModelError: the model has something that the interface cannot reproduce.
    """
    family = model.config.model_type
    if family not in ADAPTERS:
        raise UnknownName("model family", family, ADAPTERS)
    return ADAPTERS[family](model, fingerprint)
