"""Load frozen models and put a directed pair together (spec 7; paper A.1).

A model is a local folder or a hub id. Only safetensors are read, remote code is never run, and a model is loaded in its dtype
(casting afterwards would round its rotary frequencies). Everything that can be wrong with the files is found here, by name.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from acct.errors import ConfigError, ModelError, UnknownName
from acct.geometry import PairGeometry
from acct.models import compat
from acct.models.adapter import ModelAdapter, config_digest
from acct.models.integrity import check_files, check_stop_token, check_tokenizer_files, file_sha256, stops_of
from acct.models.registry import ADAPTERS, adapter_for
from acct.models.vocabulary import compare_vocabularies

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]


@dataclass(frozen=True)
class Pair:
    """A directed pair S -> T of frozen models.

    Attributes:
        source, target: adapters. tokenizer: the target's, which serves both, or None. geometry: shapes and correspondences.
        interface_device: where the modules between the two models live.
    """

    source: ModelAdapter
    target: ModelAdapter
    tokenizer: PreTrainedTokenizerBase | None
    geometry: PairGeometry
    interface_device: torch.device

    @classmethod
    def of(
        cls,
        source: ModelAdapter,
        target: ModelAdapter,
        tokenizer: PreTrainedTokenizerBase | None = None,
        interface_device: torch.device | str | None = None,
    ) -> Pair:
        """A pair of models that are in memory; the interface lives beside the source unless told otherwise."""
        device = source.device if interface_device is None else torch.device(interface_device)
        return cls(source, target, tokenizer, PairGeometry(source.geometry, target.geometry), device)


def load_pair(
    source: str | Path,
    target: str | Path,
    dtype: str | torch.dtype = "float32",
    source_device: str = "cpu",
    interface_device: str = "cpu",
    target_device: str = "cpu",
    source_revision: str | None = None,
    target_revision: str | None = None,
    target_device_map: str | dict[str, Any] | None = None,
) -> Pair:
    """Load both models and compare their vocabularies.

    Args:
        source, target: local folders or hub ids. dtype: of both models; rotary frequencies stay fp32.
        source_device, interface_device, target_device: "cpu", "cuda:0", ...
        target_device_map: spreads the target's layers over devices in place of target_device; see `load_model`.
    Raises:
        ModelError, VocabularyError, ConfigError: see `load_model` and `compare_vocabularies`.
    """
    source_folder, target_folder = local_folder(source, source_revision), local_folder(target, target_revision)
    tokenizers = load_tokenizer(source_folder), load_tokenizer(target_folder)
    compare_vocabularies(*tokenizers, str(source), str(target))  # before gigabytes are read
    own = load_model(source_folder, dtype, source_device)
    adapters = own, load_model(target_folder, dtype, target_device, device_map=target_device_map)
    for name, tokenizer, adapter in zip((source, target), tokenizers, adapters):
        check_stop_token(tokenizer, stops_of(adapter.model.config, adapter.model.generation_config), str(name))
    compare_vocabularies(*tokenizers, str(source), str(target), *(adapter.geometry.vocabulary for adapter in adapters))
    return Pair.of(*adapters, tokenizers[1], checked_device(interface_device))


def load_model(
    id_or_path: str | Path, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu", revision: str | None = None,
    device_map: str | dict[str, Any] | None = None,
) -> ModelAdapter:  # fmt: skip
    """A frozen model in eval mode behind its adapter.

    Args:
        id_or_path: a local folder or a hub id. dtype: "float32", "bfloat16" or "float16". revision: hub revision.
        device_map: as transformers takes it ("auto", "balanced", or modules and their devices), in place of `device`; needs accelerate.
            Ids go in and states come out on the device of the embedding.
    Raises:
        ModelError: a file is missing, truncated or not the one its record names, a tensor is missing, of another shape or holds NaN or
            Inf, no rope_theta is stated or another one is in use, or the family is not known. ConfigError: unknown dtype or device.
    """
    dtype, device = checked_dtype(dtype), checked_device(device)
    placement = {} if device_map is None else {"device_map": checked_device_map(device_map)}
    folder = local_folder(id_or_path, revision)
    check_files(folder)
    raw = read_config(folder)
    files = weight_files(folder)
    try:
        with compat.quiet_loading():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, local_files_only=True, output_loading_info=True,
                **placement,
            )  # fmt: skip
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ModelError(f"{folder} cannot be loaded as a {raw['model_type']} model: {_first_line(error)}") from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ModelError(f"{folder} lacks {len(missing)} tensors of its own configuration, first {missing[0]!r}. Download it again.")
    if report["mismatched_keys"]:
        raise ModelError(f"{folder}: {sorted(report['mismatched_keys'])[0]} has another shape than its configuration says.")
    if report["unexpected_keys"]:
        unused = sorted(report["unexpected_keys"])
        logger.warning("%s holds %d tensors that the model does not use, first %r", folder, len(unused), unused[0])
    if away := next((name for name, parameter in model.named_parameters() if parameter.is_meta), None):
        raise ConfigError(
            f"the device map {device_map!r} leaves {away!r} of {folder} to be fetched from memory or disk in every pass: the visible "
            "devices are too small. Make more of them visible, or name devices for all modules."
        )
    check_finite(model, str(folder))
    model.requires_grad_(False).eval()
    if device_map is None:
        model.to(device)
    adapter = adapter_for(model, _file_fingerprint(model, files))
    stated = compat.stated_thetas(raw)
    if {adapter.rotary.theta} != stated:
        bases = " and ".join(f"{one:g}" for one in sorted(stated))
        raise ModelError(
            f"{folder}/config.json states the rotary base {bases}, the loaded model rotates with {adapter.rotary.theta:g}. This version of "
            "transformers reads another place: write one value as rope_theta and into rope_parameters."
        )
    return adapter


def load_tokenizer(id_or_path: str | Path, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub id.

    With a `tokenizer.json` that file is used as it is: the automatic class of transformers 5.2 rebuilds some tokenizers with
    other tokens than the file has.

    Raises:
        ModelError: no tokenizer files, unreadable ones, or files that disagree.
    """
    folder = local_folder(id_or_path, revision)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(f"{folder} holds no tokenizer.json. Save the model's tokenizer into the same folder.")
    check_tokenizer_files(folder)
    try:
        if (folder / "tokenizer.json").is_file():
            return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # the Rust tokenizers raise bare Exception for a malformed file
        raise ModelError(f"{folder} holds no readable tokenizer: {_first_line(error)}") from error


def local_folder(id_or_path: str | Path, revision: str | None = None) -> Path:
    """The folder of a model: the path itself, or the hub's snapshot of an "owner/name" id, downloaded when not yet there."""
    path = Path(id_or_path).expanduser()
    if path.is_dir():
        return path
    name = str(id_or_path)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) or path.exists():
        raise ModelError(f"{name!r} is not a folder, nor a hub id like 'owner/name'. Give the folder that holds config.json.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES, ignore_patterns=["original/*"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelError(
            f"{name!r} is neither a local folder nor can it be had from the model hub: {_first_line(error)} "
            "Check the name, your access and the network, or give a local folder."
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as written, checked for a known family and a stated rotary base.

    Raises:
        ModelError: missing or malformed, of an unknown family, or without rope_theta.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{folder} has no config.json. Give the folder of a transformers model.") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {_first_line(error)}") from error
    family = raw.get("model_type") if isinstance(raw, dict) else None
    if family not in ADAPTERS:
        raise ModelError(f"{path}: {UnknownName('model family', str(family), ADAPTERS)}")
    if not compat.stated_thetas(raw):
        raise ModelError(
            f"{path} states no rope_theta, neither at the top nor in rope_parameters. transformers would assume 10000; "
            "write the value that the model was trained with into the file."
        )
    return raw


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, each with a header that can be read.

    Raises:
        ModelError: none there, a shard of the index is missing, or a file is truncated.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            files = [folder / name for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))]
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{index} is not a safetensors index: {_first_line(error)}") from error
    else:
        files = [folder / "model.safetensors"]
    for path in files:
        if not path.is_file():
            pickled = " Pickled weights (*.bin) are not read; convert them." if any(folder.glob("*.bin")) else ""
            raise ModelError(f"{folder} lacks {path.name}.{pickled or ' Download it again.'}")
        try:
            with safe_open(path, framework="pt") as opened:
                opened.keys()
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is truncated or not a safetensors file ({_first_line(error)}). Download it again.") from error
    return files


def check_finite(model: nn.Module, name: str) -> None:
    """Raises ModelError naming the first parameter that holds NaN or Inf."""
    for key, parameter in model.named_parameters():
        if parameter.numel() and not torch.isfinite(torch.stack(torch.aminmax(parameter.detach()))).all():
            bad = int((~torch.isfinite(parameter)).sum())
            raise ModelError(f"{name}: {key!r} holds {bad} NaN or Inf among {parameter.numel()} weights. The file is damaged.")


def checked_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A dtype of DTYPES, by name or as it is; ConfigError otherwise."""
    found = DTYPES.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if found not in DTYPES.values():
        raise ConfigError(f"model dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    return found


def checked_device(device: str | torch.device) -> torch.device:
    """A device that exists here; ConfigError otherwise."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device must be like 'cpu' or 'cuda:0', got {device!r}.") from error
    count = torch.cuda.device_count()
    if found.type == "cuda" and (found.index or 0) >= count:
        raise ConfigError(f"device {device!r} is not here: {count} CUDA devices are visible. Use 'cpu' or another index.")
    return found


def checked_device_map(device_map: str | dict[str, Any]) -> str | dict[str, Any]:
    """A device map whose devices exist here; ConfigError otherwise, or where accelerate, which places the layers, is missing."""
    if importlib.util.find_spec("accelerate") is None:
        raise ConfigError("a device map needs accelerate, which is not installed. Install it, or leave runtime.target_device_map null.")
    if isinstance(device_map, dict):
        for place in device_map.values():
            checked_device(f"cuda:{place}" if isinstance(place, int) else place)
    return device_map


def _file_fingerprint(model: PreTrainedModel, files: list[Path]) -> Callable[[], str]:
    """sha256 over configuration and file contents. In the hub's cache a file's own name already is its sha256."""

    def compute() -> str:
        digest = config_digest(model)
        for path in files:
            blob = path.resolve().name
            if not re.fullmatch(r"[0-9a-f]{64}", blob):
                blob = file_sha256(path)
            digest.update(f"{path.name}:{blob}".encode())
        return digest.hexdigest()

    return compute


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
