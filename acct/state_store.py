"""Tensors on disk under the hash of what they were computed from: one safetensors file for each entry.

A file is written whole or not at all, carries the key and a SHA-256 of itself, and is read only when both fit; anything else counts as
absent and is computed again. Nothing here is needed for a result: a disk that is full, a folder that cannot be written and a limit that is
reached stop the storing, with one warning, and what is stored goes on being used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from acct.errors import ArtifactError
from acct.training.files import all_finite, write_bytes

logger = logging.getLogger(__name__)
FORMAT = "acct.states/1"
STORED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STALE_SECONDS = 3600.0  # a temporary file this old belongs to a process that was killed


class StateStore:
    """Entries below one folder; several processes may share it.

    Args:
        folder: made when the first entry is written. gigabytes: largest sum of the files (2^30 bytes each); nothing is thrown away.
        dtype: wider floating-point tensors are stored in this type, "float32", "bfloat16" or "float16"; one that float16 cannot hold
            stays as it is.
    Attributes:
        hits, misses, written: entries found, entries not found, entries stored, of this process.
        storing: whether further entries are stored; False after a full disk or at the limit.
    """

    def __init__(self, folder: Path | str, gigabytes: float = float("inf"), dtype: str = "float32"):
        self.folder, self.limit, self.dtype = Path(folder), gigabytes * 2**30, STORED[dtype]
        self.hits = self.misses = self.written = 0
        self.storing = True
        self._bytes = 0
        for path in self.folder.glob("*/*"):
            if path.suffix == ".safetensors":
                self._bytes += path.stat().st_size
            elif path.suffix == ".part" and time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink(missing_ok=True)

    def path(self, key: str) -> Path:
        """Where the entry of a key lies."""
        return self.folder / key[:2] / f"{key}.safetensors"

    def holds(self, key: str) -> bool:
        """Whether there is a file of a key; only `get` tells whether it is whole."""
        return self.path(key).is_file()

    def get(self, key: str) -> dict[str, Tensor] | None:
        """The entry of a key on the CPU, in the stored types; None where there is none, or none that is whole and of this key."""
        path = self.path(key)
        try:
            tensors = _opened(path.read_bytes(), key)
        except FileNotFoundError:
            tensors = None
        except (OSError, ValueError, SafetensorError) as error:
            logger.warning("%s is not used (%s); its states are computed again", path, error)
            tensors = None
        self.hits += tensors is not None
        self.misses += tensors is None
        return tensors

    def put(self, key: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Store an entry, unless storing has stopped; returns what `get` would give for it."""
        packed = {name: self._narrow(tensor.detach().cpu()).contiguous() for name, tensor in tensors.items()}
        if self.storing:
            data = _closed(packed, key)
            if self._bytes + len(data) > self.limit:
                self._stop(f"training.state_cache_gigabytes={self.limit / 2**30:g} is reached")
                return packed
            try:
                write_bytes(self.path(key), data)
            except ArtifactError as error:
                self._stop(str(error))
                return packed
            self._bytes += len(data)
            self.written += 1
        return packed

    def _narrow(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or torch.finfo(tensor.dtype).bits <= torch.finfo(self.dtype).bits:
            return tensor
        found = tensor.to(self.dtype)
        return found if all_finite(found) else tensor

    def _stop(self, reason: str) -> None:
        self.storing = False
        logger.warning(
            "no further states are kept in %s: %s The run goes on and computes them; what is there is used. Free space or raise the limit "
            "and start again, or set paths.state_cache=null.",
            self.folder,
            reason if reason.endswith(".") else f"{reason}.",
        )


def _closed(tensors: Mapping[str, Tensor], key: str) -> bytes:
    """The bytes of a file: safetensors with the key and a digest of names, types, shapes and numbers in its metadata."""
    digest = _digest(*_parts(save(dict(tensors))))
    return save(dict(tensors), metadata={"format": FORMAT, "key": key, "sha256": digest})


def _opened(data: bytes, key: str) -> dict[str, Tensor]:
    """Tensors of a file's bytes. Raises ValueError or SafetensorError where they are not those that were stored under this key."""
    header, payload = _parts(data)
    metadata = header.get("__metadata__", {})
    for name, expected in (("format", FORMAT), ("key", key), ("sha256", _digest(header, payload))):
        if metadata.get(name) != expected:
            raise ValueError(f"its {name} is {metadata.get(name)!r}, expected {expected!r}")
    return dict(load(data))


def _parts(data: bytes) -> tuple[dict, memoryview]:
    """Header and numbers of a safetensors file. Raises ValueError where the header cannot be read."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end]) if 8 < end <= len(data) else None
    if not isinstance(header, dict):
        raise ValueError(f"{len(data)} bytes without a header")
    return header, memoryview(data)[end:]


def _digest(header: Mapping, payload: memoryview) -> str:
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    found = hashlib.sha256(json.dumps(entries, sort_keys=True).encode())
    found.update(payload)
    return found.hexdigest()
