"""Metrics: always to <run>/metrics.jsonl, besides that to W&B or TensorBoard when asked (imported only then).

One line of the file is one step: {"stage": ..., "step": ..., "time": ..., "<term>": value, ...}. NaN and Inf are written as null,
so that the file stays JSON.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from acct.errors import ArtifactError, ConfigError


class Sink(Protocol):
    """A destination of scalars besides the local file."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class WandbSink:
    """Weights & Biases; offline unless the mode or the environment says otherwise."""

    def __init__(self, folder: Path, project: str, mode: str, name: str, config: Mapping[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("tracker.kind=wandb needs the package wandb: pip install 'acct[track]', or tracker.kind=none.") from error
        settings = wandb.Settings(silent=True, console="off")
        mode = os.environ.get("WANDB_MODE", mode)
        self.run = wandb.init(project=project, name=name, dir=str(folder), mode=mode, config=dict(config), settings=settings)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        self.run.finish()


class TensorBoardSink:
    """TensorBoard event files in <run>/tensorboard."""

    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("tracker.kind=tensorboard needs tensorboard: pip install tensorboard, or tracker.kind=none.") from error
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class Tracker:
    """Appends metrics to <folder>/metrics.jsonl and hands them to the sinks. Use as a context manager.

    Args:
        folder: the run's folder, made if missing; None writes nothing (processes other than the first).
        sinks: further destinations; they receive names "<stage>/<term>" and a step that only grows.
    """

    def __init__(self, folder: Path | str | None, sinks: list[Sink] | None = None):
        self.path = None if folder is None else Path(folder) / "metrics.jsonl"
        self.sinks = sinks or []
        self._calls = 0
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step of a stage; values are plain numbers.

        Raises:
            ArtifactError: the file cannot be written (disk full).
        """
        if self.path is None:
            return
        clean = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        line = json.dumps({"stage": stage, "step": step, "time": round(time.time(), 3), **clean}, allow_nan=False)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise ArtifactError(
                f"cannot write {self.path}: {error.strerror or error}. The last checkpoint is kept: free space and start the same "
                "command again, it continues from there."
            ) from error
        self._calls += 1
        named = {f"{stage}/{name}": value for name, value in clean.items() if value is not None}
        for sink in self.sinks:
            sink.log(named, self._calls)

    def rewind(self, stage: str, step: int) -> None:
        """Forget lines of a stage at or after a step: they lie beyond the checkpoint that a resumed run starts from.

        A last line that a killed process left unfinished is dropped as well.
        """
        if self.path is None or not self.path.is_file():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if row.get("stage") != stage or row.get("step", -1) < step:
                kept.append(line)
        temporary = self.path.with_suffix(".jsonl.part")
        temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        os.replace(temporary, self.path)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def make_tracker(kind: str, folder: Path | str, project: str, mode: str, name: str, config: Mapping[str, Any]) -> Tracker:
    """The Tracker that a configuration asks for: kind is "none", "wandb" or "tensorboard".

    Raises:
        ConfigError: the package behind the kind is not installed.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "wandb":
        return Tracker(folder, [WandbSink(folder, project, mode, name, config)])
    if kind == "tensorboard":
        return Tracker(folder, [TensorBoardSink(folder)])
    return Tracker(folder)
