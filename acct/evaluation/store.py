"""Records on disk while a run goes on: append-only part files that a killed run continues, then one Parquet file.

    <folder>/configuration.json    what the records are computed from; another configuration refuses and names the field
    <folder>/parts/<task>.jsonl    one record a line, flushed after every batch of every method
    <folder>/records.parquet       all parts

A part is trusted by the line: a last line without its end is dropped, any other damage is refused with the file and the line. A folder
without parts, as it is published, goes on from its records.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from acct.errors import ArtifactError
from acct.json_files import read_json
from acct.reporting.records import CONFIGURATION, PARTS, RECORDS, as_frame, json_rows, read_records, write_records
from acct.reporting.rows import check_frame, check_sample, line_fault
from acct.training.files import write_text

SCORE_AGAIN = "Remove the file to score this task again."


class RecordStore:
    """The records of one direction.

    Args:
        folder: made if missing. configuration: JSON values. Keys of an earlier run that are absent here are kept: a later run may add
            tasks. restart: throw away what is there instead of refusing.
    Raises:
        ArtifactError: the folder holds records of another configuration, or a damaged file.
    """

    def __init__(self, folder: Path | str, configuration: Mapping[str, Any], restart: bool = False):
        self.folder = Path(folder)
        self.parts = self.folder / PARTS
        if restart:
            shutil.rmtree(self.parts, ignore_errors=True)
            for name in (CONFIGURATION, RECORDS):
                (self.folder / name).unlink(missing_ok=True)
        self.configuration = self._agreed(json.loads(json.dumps(dict(configuration))))
        if not self.parts.is_dir() and (self.folder / RECORDS).is_file():
            self._open_published()
        self.parts.mkdir(parents=True, exist_ok=True)  # first: a folder with parts and no records is known to be unfinished
        write_text(self.folder / CONFIGURATION, json.dumps(self.configuration, indent=2, sort_keys=True) + "\n")
        self._rows: dict[str, list[dict[str, Any]]] = {path.stem: self._read(path) for path in sorted(self.parts.glob("*.jsonl"))}
        self.kept = sum(map(len, self._rows.values()))

    def _agreed(self, configuration: dict[str, Any]) -> dict[str, Any]:
        path = self.folder / CONFIGURATION
        if not path.is_file():
            return configuration
        before = read_json(path, "Start over (evaluation.restart=true), or remove the folder.")
        for name in sorted(set(before) & set(configuration)):
            if before[name] != configuration[name]:
                raise ArtifactError(
                    f"{self.folder} holds records of another configuration: {name} was {_short(before[name])}, now it is "
                    f"{_short(configuration[name])}. Choose another folder, or start over (evaluation.restart=true)."
                )
        return {**before, **configuration}

    def _open_published(self) -> None:
        """Part files of the records that are there, all of them or none."""
        whole = self.folder / f"{PARTS}.new"
        shutil.rmtree(whole, ignore_errors=True)
        for task, rows in read_records(self.folder).frame.groupby("task", sort=False):
            write_text(whole / f"{task}.jsonl", "".join(json.dumps(row, allow_nan=False) + "\n" for row in json_rows(rows)))
        whole.rename(self.parts)

    def _read(self, path: Path) -> list[dict[str, Any]]:
        """Complete lines, checked; a last line cut off by a kill is removed from the file."""
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.open("r+b") as file:
                file.truncate(whole)
        rows = []
        for number, line in enumerate(data[:whole].split(b"\n")[:-1], start=1):
            try:
                row = json.loads(line)
                fault = line_fault(row)
            except (ValueError, RecursionError) as error:
                row, fault = None, str(error)
            if fault is None and row["task"] != path.stem:
                fault = f"task is {row['task']!r} in the file of {path.stem}"
            if fault is not None:
                raise ArtifactError(f"{path}:{number} is not a record: {fault}. {SCORE_AGAIN}")
            rows.append(row)
        check_frame(as_frame(rows), path, self.configuration.get("direction"), SCORE_AGAIN)
        return rows

    def check(self, task: str, prompts: Mapping[str, str]) -> None:
        """Refuse stored records of a task that were not made from its sample.

        Args:
            prompts: prompt hash of every example, by id.
        Raises:
            ArtifactError: an example or a prompt that the sample does not have.
        """
        check_sample(self.frame([task]), self.parts / f"{task}.jsonl", prompts, SCORE_AGAIN)

    def done(self, task: str, method: str) -> set[str]:
        """Ids of the examples that have a record."""
        return {row["example"] for row in self._rows.get(task, []) if row["method"] == method}

    def append(self, task: str, rows: Sequence[dict[str, Any]]) -> None:
        """Add records of one batch and method; on the disk when this returns."""
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        path = self.parts / f"{task}.jsonl"
        before = path.stat().st_size if path.is_file() else 0
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if path.is_file():
                os.truncate(path, before)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ArtifactError(f"no space left while writing {path}. Records up to here are kept: free space, start again.") from error
            raise ArtifactError(f"cannot write {path}: {error.strerror or error}.") from error
        self._rows.setdefault(task, []).extend(rows)

    def frame(self, tasks: Sequence[str] | None = None) -> pd.DataFrame:
        """All records as a frame of the schema, of the given tasks."""
        return as_frame([row for task, rows in self._rows.items() if tasks is None or task in tasks for row in rows])

    def finish(self) -> Path:
        """Write records.parquet from all parts."""
        write_records(self.frame(), self.folder / RECORDS)
        return self.folder / RECORDS


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
