"""A selection in a file of its own, for those who keep one between processes; the training stages keep theirs as artifacts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from acct.errors import ArtifactError
from acct.selection import validate
from acct.types import Selection

_FORMAT = "acct-selection-1"


def save_selection(selection: Selection, path: str | Path, identity: Mapping[str, str] | None = None) -> None:
    """Write a selection as int32 safetensors, whole or not at all (a rename ends it); `identity` says what it was built from.

    Raises:
        ArtifactError: the file cannot be written.
    """
    path = Path(path)
    stored = {
        name: value.to("cpu", torch.bool if value.dtype == torch.bool else torch.int32).contiguous()
        for name, value in vars(selection).items()
        if isinstance(value, Tensor)
    }
    header = {"format": _FORMAT, "layers": str(selection.layers), "heads": str(selection.heads)}
    header["identity"] = json.dumps(dict(identity or {}))
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(stored, partial, metadata=header)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise ArtifactError(f"cannot write the selection {path}: {error}. Check the folder's permissions and the free space.") from error


def load_selection(path: str | Path) -> tuple[Selection, dict[str, str]]:
    """Read a selection and its identity, and validate it.

    Raises:
        ArtifactError: the file is missing, truncated or of another kind. SelectionError: its content breaks an invariant.
    """
    path = Path(path)
    if not path.is_file():
        raise ArtifactError(f"no selection at {path}. Run the Allocator stage that writes it, or correct the path.")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{path} is no readable selection file: {error}. It may be truncated: write it again.") from error
    names = {"context_lengths", "tails", "counts", "positions", "ranks", "is_tail"}
    if header.get("format") != _FORMAT or set(tensors) != names:
        raise ArtifactError(f"{path} is not a selection of format {_FORMAT!r}: got {header.get('format')!r} holding {sorted(tensors)}.")
    wide = {name: value if value.dtype == torch.bool else value.to(torch.int64) for name, value in tensors.items()}
    selection = Selection(int(header["layers"]), int(header["heads"]), **wide)
    validate(selection)
    return selection, json.loads(header["identity"])
