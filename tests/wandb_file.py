"""Read back what W&B wrote offline: <run>.wandb is a log of 32 KiB blocks (LevelDB's format) of W&B's own protocol buffers."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

BLOCK, HEAD, FILE_HEAD = 32768, 7, 7
PATIENCE = 30.0  # seconds
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> list[Any]:
    """Every Record of the file, in order."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    assert data[:4] == b":W&B", f"{path} is not a file of W&B's"
    place, part, found = FILE_HEAD, b"", []
    while place + HEAD <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEAD:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEAD])
        if place + HEAD + length > len(data):
            break  # not written to its end yet
        piece = data[place + HEAD : place + HEAD + length]
        place += HEAD + length
        part = piece if kind in (FULL, FIRST) else part + piece
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(part)
            found.append(record)
    return found


class OfflineRun:
    """One offline run below a folder: settings, config, history, tables, images, artifacts, system metrics."""

    def __init__(self, folder: Path):
        (self.path,) = folder.glob("wandb/offline-run-*/*.wandb")
        self.files = self.path.parent / "files"
        limit = time.monotonic() + PATIENCE
        self.records = records(self.path)
        while not self.of("exit") and time.monotonic() < limit:  # W&B's own process writes the end after finish() has returned
            time.sleep(0.1)
            self.records = records(self.path)

    def of(self, kind: str) -> list[Any]:
        return [getattr(record, kind) for record in self.records if record.WhichOneof("record_type") == kind]

    @property
    def run(self) -> Any:
        return self.of("run")[0]

    @property
    def config(self) -> dict[str, Any]:
        return {item.key: json.loads(item.value_json) for item in self.run.config.update}

    @property
    def history(self) -> list[dict[str, Any]]:
        rows = []
        for one in self.of("history"):
            row: dict[str, Any] = {}
            for item in one.item:
                *parents, last = item.nested_key or [item.key]
                place = row
                for parent in parents:
                    place = place.setdefault(parent, {})
                place[last] = json.loads(item.value_json)
            rows.append({key: value for key, value in row.items() if not key.startswith("_")})
        return rows

    def media(self, key: str) -> Path:
        """The file behind a logged table or image."""
        (value,) = [row[key] for row in self.history if key in row]
        return self.files / value["path"]
