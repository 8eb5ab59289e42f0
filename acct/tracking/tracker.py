"""The Tracker: appends metrics to <run>/metrics.jsonl and hands everything to the sinks, which can fail without harm.

One line of the file is one step: {"stage": ..., "step": ..., "time": ..., "<term>": value, ...}. NaN and Inf are written as null,
so that the file stays JSON. A sink that raises is named once, closed and left out from then on: a dashboard is never worth a run.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from acct.config.root import Config, as_dict
from acct.config.runtime import TrackerConfig
from acct.errors import ArtifactError, ConfigError
from acct.tracking.sink import RunLabel, Sink, Value

logger = logging.getLogger(__name__)


class Tracker:
    """Use as a context manager.

    Args:
        folder: the run's folder, made if missing; None writes nothing (processes other than the first).
        sinks: further destinations.
    """

    def __init__(self, folder: Path | str | None, sinks: Sequence[Sink] = ()):
        self.path = None if folder is None else Path(folder) / "metrics.jsonl"
        self.sinks = list(sinks)
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
        finite = {name: value for name, value in clean.items() if value is not None}
        self._each(lambda sink: sink.log(stage, step, finite))

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        """Show a table; `key` is "<stage>/<name>". NaN and Inf become None."""
        clean = [[None if isinstance(value, float) and not math.isfinite(value) else value for value in row] for row in rows]
        self._each(lambda sink: sink.table(key, columns, clean))

    def image(self, key: str, path: Path) -> None:
        """Show a PNG; `key` is "<stage>/<name>"."""
        self._each(lambda sink: sink.image(key, path))

    def artifact(self, name: str, kind: str, files: Sequence[Path], metadata: Mapping[str, Any]) -> None:
        """Hand over what a stage has left."""
        self._each(lambda sink: sink.artifact(name, kind, files, metadata))

    def _each(self, call: Callable[[Sink], None]) -> None:
        """Call every sink; one that raises is named, closed and dropped."""
        for sink in list(self.sinks):
            try:
                call(sink)
            except Exception as error:
                self.sinks.remove(sink)
                _warn(sink.name, error)
                with suppress(Exception):
                    sink.close(failed=True)

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

    def close(self, failed: bool = False) -> None:
        """Close every sink."""
        self._each(lambda sink: sink.close(failed))
        self.sinks.clear()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(failed=kind is not None)


def _warn(name: str, error: Exception) -> None:
    reason = " ".join(str(error).split())[:200]
    logger.warning(
        "%s failed (%s: %s) and gets nothing more of this run, which goes on; metrics.jsonl holds every metric. tracker.kind=none silences "
        "this.", name, type(error).__name__, reason,
    )  # fmt: skip


def make_tracker(settings: TrackerConfig, folder: Path | str, label: RunLabel, config: Mapping[str, Any]) -> Tracker:
    """The Tracker that a configuration asks for. A sink that cannot be started is named and left out.

    Raises:
        ConfigError: the package behind tracker.kind is not installed.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return Tracker(folder, _sinks(settings, folder, label, config))
    except ConfigError:
        raise
    except Exception as error:
        _warn(f"tracker.kind={settings.kind}", error)
        return Tracker(folder)


def label_of(config: Config, job: str) -> RunLabel:
    """How the configured run is named: grouped by direction; scale, retention, variant and seed are tags."""
    tags = [config.scale, f"retention {config.budget.retention:g}", f"seed {config.runtime.seed}", *config.tracker.tags]
    tags += [config.paths.variant] if config.paths.variant else []
    return RunLabel(Path(config.paths.run).name, config.direction.name, job, tuple(tags))


def open_tracker(config: Config, job: str) -> Tracker:
    """The tracker of one command on the configured run folder."""
    return make_tracker(config.tracker, config.paths.run, label_of(config, job), as_dict(config))


def _sinks(settings: TrackerConfig, folder: Path, label: RunLabel, config: Mapping[str, Any]) -> list[Sink]:
    if settings.kind == "wandb":
        from acct.tracking.wandb_sink import WandbSink

        return [WandbSink(folder, settings, label, config)]
    if settings.kind == "tensorboard":
        from acct.tracking.tensorboard_sink import TensorBoardSink

        return [TensorBoardSink(folder, label, config)]
    return []
