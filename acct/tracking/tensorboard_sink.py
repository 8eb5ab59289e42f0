"""TensorBoard event files in <run>/tensorboard: scalars, tables and artifacts as Markdown text, images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acct.errors import ConfigError
from acct.tracking.sink import RunLabel, Sink, Value


class TensorBoardSink(Sink):
    """One writer for each command that is run in the folder: <folder>/tensorboard/<job>.

    Raises:
        ConfigError: tensorboard is not installed.
    """

    name = "TensorBoard"

    def __init__(self, folder: Path, label: RunLabel, config: Mapping[str, Any]):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "tracker.kind=tensorboard needs the package tensorboard: pip install 'acct[track]', or tracker.kind=none."
            ) from error
        self.writer = SummaryWriter(str(folder / "tensorboard" / label.job))
        self.writer.add_text("run", f"{label.name}, {label.job}: {', '.join(label.tags)}")
        self.writer.add_text("configuration", fenced(config))

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(f"{stage}/{name}", value, step)

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        lines = [list(columns), ["---"] * len(columns), *([shown(value) for value in row] for row in rows)]
        self.writer.add_text(key, "\n".join("| " + " | ".join(line) + " |" for line in lines))

    def image(self, key: str, path: Path) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(path) as picture:
            self.writer.add_image(key, np.asarray(picture.convert("RGB")), dataformats="HWC")

    def artifact(self, name: str, kind: str, files: Sequence[Path], metadata: Mapping[str, Any]) -> None:
        self.writer.add_text(f"artifacts/{name}", fenced({"kind": kind, **metadata, "files": [file.name for file in files]}))

    def close(self, failed: bool = False) -> None:
        self.writer.close()


def fenced(value: Mapping[str, Any]) -> str:
    """JSON in a Markdown fence."""
    return "```json\n" + json.dumps(value, indent=1, sort_keys=True, default=str) + "\n```"


def shown(value: Value) -> str:
    """A cell of a table; a dash for what is undefined."""
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
