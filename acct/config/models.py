"""Where model folders lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ModelsConfig:
    """Models that are on the disk.

    Attributes:
        root: folder that holds a direction's models, each as <root>/<owner>/<name> or <root>/<name> of its hub id; null asks the hub.
    """

    root: str | None = None
