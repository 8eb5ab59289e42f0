"""What charts read: sheets of records by setting, and what runs noted. Loaded once, and only when a chart asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from acct.evaluation.diagnosis import read_diagnosis
from acct.reporting.figures import Sheet
from acct.reporting.intervals import Bootstrap, mean
from acct.reporting.names import direction_label
from acct.reporting.records import FOLDER, PROVENANCE, load_records, settings
from acct.reporting.rows import read_provenance


@dataclass(frozen=True)
class Run:
    """One run folder: its name, and what `acct diagnose` and `acct evaluate` noted in it (None where they were not run)."""

    name: str
    diagnosis: dict[str, Any] | None
    evaluation: dict[str, Any] | None

    @property
    def title(self) -> str:
        """The folder's name as it is written over a chart; runs of other budgets and variants keep their suffix."""
        return direction_label(self.name)


@dataclass
class Sources:
    """Everything below <results>/<scale>.

    Attributes:
        retention, variant: the setting of charts that show one. bootstrap: how intervals are drawn.
    """

    results: Path
    scale: str
    retention: float = 0.25
    variant: str = ""
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    _sheets: dict[tuple[str, float], Sheet] = field(default_factory=dict)

    @cached_property
    def settings(self) -> list[tuple[str, float]]:
        """Variant and retention of every evaluated setting."""
        return settings(self.results, self.scale)

    def sheet(self, variant: str, retention: float) -> Sheet | None:
        """Figures of one setting; None where nothing was evaluated."""
        key = (variant, retention)
        if key not in self.settings:
            return None
        if key not in self._sheets:
            self._sheets[key] = Sheet(load_records(self.results, self.scale, variant, retention), self.bootstrap)
        return self._sheets[key]

    @cached_property
    def runs(self) -> list[Run]:
        """Every run folder that noted something, by name."""
        found = []
        for folder in sorted(path for path in (self.results / self.scale).glob("*") if path.is_dir()):
            noted = folder / FOLDER / PROVENANCE
            evaluation = read_provenance(noted) if noted.is_file() else None
            diagnosis = read_diagnosis(folder)
            if evaluation is not None or diagnosis is not None:
                found.append(Run(folder.name, diagnosis, evaluation))
        return found

    def diagnosed(self, name: str) -> list[tuple[Run, Any]]:
        """Runs whose diagnosis holds a field, with the field."""
        return [(run, run.diagnosis[name]) for run in self.runs if run.diagnosis is not None and run.diagnosis.get(name) is not None]

    def means(self, values: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
        """Mean over examples with its bootstrap interval: values [example][layer] -> [layer] and [layer, 2]."""
        intervals = [mean(column, self.bootstrap).interval(self.bootstrap.confidence) for column in np.asarray(values, dtype=np.float64).T]
        return np.array([one.value for one in intervals]), np.array([[one.lower, one.upper] for one in intervals])


@dataclass(frozen=True)
class Drawn:
    """What a chart wrote, and what it could not show, with the command that supplies it."""

    files: tuple[Path, ...] = ()
    missing: tuple[str, ...] = ()
