"""Geometry of models without their weights: from a configuration alone, on the meta device (spec 6, 7; paper E).

`configurations/<owner>/<model>.json` are the public configurations of the models of the paper's pairs, see the README there. A local folder
with a `config.json` (the embedded models) is read in the same way. The geometry is taken from the instantiated classes through the
family's adapter, not from field names, so that it is what a run on the loaded model would see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from acct.errors import ModelError, UnknownName
from acct.geometry import ModelGeometry
from acct.json_files import read_json
from acct.models.registry import adapter_for
from acct.training.files import hash_json

CONFIGURATIONS = Path(__file__).with_name("configurations")
COPY_AGAIN = "Copy the model's config.json there again."


@dataclass(frozen=True)
class PublishedModel:
    """A model as its configuration describes it.

    Attributes:
        name: hub id, or the folder's name. geometry: what the interface needs of it. parameters: of the instantiated model, an embedding
            that serves as the head counted once. tied: whether it does. digest: SHA-256 of the configuration.
    """

    name: str
    geometry: ModelGeometry
    parameters: int
    tied: bool
    digest: str


def published_names() -> list[str]:
    """Hub ids whose configurations are kept here."""
    return sorted(str(path.relative_to(CONFIGURATIONS).with_suffix("")) for path in CONFIGURATIONS.glob("*/*.json"))


def configuration(name: str) -> dict[str, Any]:
    """The configuration of a hub id that is kept here, or of a local folder.

    Raises:
        UnknownName: neither. ModelError: not a JSON object with a `model_type`.
    """
    path = Path(name) / "config.json"
    if not path.is_file():
        path = CONFIGURATIONS / f"{name}.json"
        if not path.is_file():
            raise UnknownName("published configuration", name, published_names())
    found: dict[str, Any] = read_json(path, COPY_AGAIN, finite=False, error=ModelError)
    if "model_type" not in found:
        raise ModelError(f"{path} must be an object with a model_type. {COPY_AGAIN}")
    return found


def weightless(settings: Mapping[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """A model of a configuration on the meta device: shapes and types of every tensor, no memory.

    Args:
        settings: fields of config.json, model_type included. dtype: of its tensors.
    """
    fields = {key: value for key, value in settings.items() if key != "model_type"}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(settings["model_type"], **fields), dtype=dtype)


@lru_cache(maxsize=32)
def published(name: str) -> PublishedModel:
    """Instantiate a model on the meta device and read its geometry: seconds and megabytes for any size.

    Args:
        name: a hub id of `published_names()`, or a folder with a config.json.
    Raises:
        UnknownName, ModelError: see `configuration`; also a family without an adapter.
    """
    raw = configuration(name)
    model = weightless(raw, torch.bfloat16)
    count = sum(parameter.numel() for parameter in model.parameters())
    shown = Path(name).name if (Path(name) / "config.json").is_file() else name
    return PublishedModel(shown, adapter_for(model, lambda: name).geometry, count, bool(model.config.tie_word_embeddings), hash_json(raw))
