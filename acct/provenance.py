"""What a run was made with: commit, versions, hardware, threads, seeds, peak memory, seconds for each phase.

A folder without <run>/provenance.json does not enter a table.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

import acct
from acct.training.files import write_text

PACKAGES = ("torch", "transformers", "safetensors", "numpy", "hydra-core", "accelerate", "pandas")


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=Path(acct.__file__).parent, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


def describe() -> dict[str, Any]:
    """Commit, versions and hardware of this process."""
    status = _git("status", "--porcelain", "--untracked-files=no")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": devices,
    }


class Provenance:
    """Collects phases and facts of one run and keeps <folder>/provenance.json up to date.

    Seconds of a phase add up over the runs that resumed it; facts are overwritten by the latest.

    Args:
        folder: the run's folder. enabled: False measures but writes nothing (processes other than the first).
    """

    def __init__(self, folder: Path | str, enabled: bool = True):
        self.path = Path(folder) / "provenance.json"
        self.enabled = enabled
        self.record: dict[str, Any] = {}
        if self.path.is_file():
            try:
                self.record = json.loads(self.path.read_text(encoding="utf-8"))
            except json.JSONDecodeError:
                self.record = {}
        self.record.setdefault("phases_seconds", {})
        self.record.update(describe())

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add facts: seeds, fingerprints, input hashes, reports."""
        self.record.update(facts)
        self.write()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to a phase, also when the block is interrupted."""
        start = time.perf_counter()
        try:
            yield
        finally:
            phases = self.record["phases_seconds"]
            phases[name] = round(phases.get(name, 0.0) + time.perf_counter() - start, 3)
            self.record["peak_memory_bytes"] = max(peak_memory_bytes(), self.record.get("peak_memory_bytes", 0))
            self.write()

    def write(self) -> None:
        if self.enabled:
            write_text(self.path, json.dumps(self.record, indent=2, sort_keys=True) + "\n")


def write_config(folder: Path | str, config: Mapping[str, Any]) -> None:
    """Write <folder>/config.yaml, the resolved configuration."""
    write_text(Path(folder) / "config.yaml", yaml.safe_dump(dict(config), sort_keys=False))
