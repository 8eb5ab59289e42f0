"""Writing files so that a crash leaves the old one or the new one, never half of one; hashes; and folders of tensors with a card.

A *carded folder* holds `<name>-<hash>.safetensors` and `card.json`, which names the tensor file with its SHA-256. The card is written
last, by a rename: that rename is the commit. Files that no card names are removed after it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from acct.errors import ArtifactError
from acct.json_files import read_json

CARD = "card.json"


def write_bytes(path: Path | str, data: bytes) -> None:
    """Replace a file atomically: temporary name in the same folder, fsync, rename.

    Raises:
        ArtifactError: the disk is full; the file that stood there before is untouched.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ArtifactError(
                f"no space left while writing {path} ({len(data):,} bytes). What stood there before is kept: "
                "free space and start the same command again, it continues from the last checkpoint."
            ) from error
        raise ArtifactError(f"cannot write {path}: {error.strerror or error}.") from error


def write_text(path: Path | str, text: str) -> None:
    """`write_bytes` for text in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


def hash_json(value: Any) -> str:
    """Digest of a JSON value, keys sorted."""
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode("utf-8"))


def all_finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor Inf; one sum where it does not overflow."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return bool(torch.isfinite(tensor.detach().sum())) or bool(torch.isfinite(tensor).all())


def write_folder(folder: Path | str, tensors: Mapping[str, Tensor], card: Mapping[str, Any], stem: str = "weights") -> str:
    """Write tensors and their card; returns the SHA-256 of the tensor file.

    Args:
        folder: made if missing. tensors: any device; saved contiguous on the CPU. card: JSON values; numbers must be finite.
    Raises:
        ArtifactError: disk full, or a tensor or number is NaN or Inf.
    """
    folder = Path(folder)
    packed = {}
    for name, tensor in tensors.items():
        if not all_finite(tensor):
            raise ArtifactError(f"{folder.name}: tensor {name!r} holds NaN or Inf; nothing is written.")
        packed[name] = tensor.detach().to("cpu").contiguous()
    data = save_tensors(packed)
    digest = sha256(data)
    name = f"{stem}-{digest[:16]}.safetensors"
    try:
        text = json.dumps({**card, "file": name, "sha256": digest}, indent=2, sort_keys=True, allow_nan=False) + "\n"
    except ValueError as error:
        raise ArtifactError(f"{folder.name}: the card holds NaN or Inf; nothing is written.") from error
    write_bytes(folder / name, data)
    write_text(folder / CARD, text)
    for stale in folder.glob(f"{stem}-*.safetensors"):
        if stale.name != name:
            stale.unlink(missing_ok=True)
    return digest


def read_card(folder: Path | str) -> dict[str, Any] | None:
    """The card of a folder, or None where there is none.

    Raises:
        ArtifactError: the card is not a JSON object, or holds NaN or Inf.
    """
    path = Path(folder) / CARD
    if not path.is_file():
        return None
    return read_json(path, f"Remove the folder {path.parent} to build it again.")


def read_folder(folder: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and card of a folder, checked against the card's SHA-256.

    Raises:
        ArtifactError: missing, truncated, tampered with, or a tensor holds NaN or Inf.
    """
    folder = Path(folder)
    card = read_card(folder)
    if card is None:
        raise ArtifactError(f"{folder} holds no {CARD}: the stage that writes it has not finished.")
    name, expected = card.get("file"), card.get("sha256")
    if not isinstance(name, str) or not isinstance(expected, str) or Path(name).name != name:
        raise ArtifactError(f"{folder / CARD} lacks 'file' or 'sha256': it is not a card of this package.")
    path = folder / name
    if not path.is_file():
        raise ArtifactError(f"{path} is missing, though {CARD} names it. Remove the folder {folder} to build it again.")
    data = path.read_bytes()
    got = sha256(data)
    if got != expected:
        raise ArtifactError(
            f"{path} is truncated or was changed: sha256 {got[:16]}... where {CARD} says {expected[:16]}... ({len(data):,} bytes). "
            f"Remove the folder {folder} to build it again."
        )
    try:
        tensors = load_tensors(data)
    except SafetensorError as error:
        raise ArtifactError(f"{path} is not a safetensors file: {error}.") from error
    for key, tensor in tensors.items():
        if not all_finite(tensor):
            raise ArtifactError(f"{path}: tensor {key!r} holds NaN or Inf.")
    return tensors, card


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers for a card: NaN and Inf become null."""
    return {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
