"""Where rows come from: a folder in the hub's field names, or the hub itself (spec 8).

Folder:  <root>/<task>/<split>.jsonl, <split>.json (one array, or JSON lines), <split>.parquet, <split>-*.parquet, or a folder <split>/ of
Arrow files (`save_to_disk`). JSON is read by the standard library; Parquet and Arrow by pyarrow; only the hub needs the extra `data`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acct.data.examples import Example
from acct.data.hub import HubEntry, default_hub, fetch_help, script_help
from acct.data.tasks.base import Task
from acct.errors import DataError, UnknownName

EVALUATION = "evaluation"  # the split that a data set is scored on, whatever its name there
NO_SCRIPTS = "scripts are no longer supported"  # what `datasets` from 4 on says of a data set that is Python code
SUFFIXES = (".jsonl", ".json", ".parquet")
Row = dict[str, Any]


class DataSource(ABC):
    """Rows of a split of a task."""

    @abstractmethod
    def split(self, task: str, split: str) -> str:
        """The source's own name of a split; "evaluation" is resolved, every other name stays."""

    @abstractmethod
    def rows(self, task: str, split: str, limit: int | None = None) -> list[Row]:
        """The first `limit` rows (all: None) in stored order.

        Raises:
            DataError: nothing is there, or it cannot be read; the file and, for JSON lines, the line are named.
        """

    @abstractmethod
    def where(self, task: str, split: str) -> str:
        """The place of a split in words, for messages and provenance."""


@dataclass(frozen=True)
class FolderSource(DataSource):
    """Files below one folder.

    Attributes:
        root: the folder (`paths.data`). folders: sub-folder of a task where it is not the task's name.
        evaluation_split: what "evaluation" means here; evaluation_splits: exceptions by task.
    """

    root: Path
    folders: dict[str, str] = field(default_factory=dict)
    evaluation_split: str = "test"
    evaluation_splits: dict[str, str] = field(default_factory=dict)

    def split(self, task: str, split: str) -> str:
        return self.evaluation_splits.get(task, self.evaluation_split) if split == EVALUATION else split

    def where(self, task: str, split: str) -> str:
        return ", ".join(str(path) for path in self.files(task, split))

    def rows(self, task: str, split: str, limit: int | None = None) -> list[Row]:
        rows: list[Row] = []
        for path in self.files(task, split):
            left = None if limit is None else limit - len(rows)
            if left == 0:
                break
            read = {".jsonl": read_jsonl, ".json": read_json, ".parquet": read_parquet}.get(path.suffix, read_arrow)
            rows += read(path, left)
        if not rows and limit != 0:
            raise DataError(f"{self.where(task, split)}: expected rows of {task}, the file is empty. Write the data set again.")
        return rows

    def files(self, task: str, split: str) -> list[Path]:
        """The files of a split, in order."""
        split = self.split(task, split)
        folder = Path(self.root) / self.folders.get(task, task)
        whole = [folder / f"{split}{suffix}" for suffix in SUFFIXES if (folder / f"{split}{suffix}").is_file()]
        shards = sorted(folder.glob(f"{split}-*.parquet"))
        forms = [files for files in (*([path] for path in whole), shards, sorted((folder / split).glob("*.arrow"))) if files]
        if len(forms) > 1:
            names = ", ".join(str(files[0].relative_to(folder)) for files in forms)
            raise DataError(f"{folder}: the split {split} must be there in one form, found {names}. Remove all but one.")
        if forms:
            return forms[0]
        found = ", ".join(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else "no such folder"
        fetch = fetch_help(task, str(folder), split)
        raise DataError(
            f"{folder}: expected {split}.jsonl, .json, .parquet or a folder {split}/ of Arrow files, found: {found or 'nothing'}. "
            f"Write the data set there, or set paths.data, data.folders, or the split (data.evaluation_split=hub takes the hub's)."
            + (f" The real data set: {fetch}." if fetch else "")
        )


@dataclass(frozen=True)
class HubSource(DataSource):
    """Data sets of the hub through the package `datasets` (extra `data`); cached by it.

    Attributes:
        entries: hub name, config, evaluation split and revision of each task. folder: the data folder that messages name.
    """

    entries: dict[str, HubEntry] = field(default_factory=default_hub)
    folder: Path = Path("data")

    def entry(self, task: str) -> HubEntry:
        if task not in self.entries:
            raise UnknownName("task of the hub", task, self.entries)
        return self.entries[task]

    def split(self, task: str, split: str) -> str:
        return self.entry(task).evaluation if split == EVALUATION else split

    def where(self, task: str, split: str) -> str:
        entry = self.entry(task)
        revision = f", revision {entry.revision}" if entry.revision else ""
        return f"{entry.path} ({entry.config or 'default'}, {self.split(task, split)}{revision}) on the hub"

    def rows(self, task: str, split: str, limit: int | None = None) -> list[Row]:
        entry, name = self.entry(task), self.where(task, split)
        try:
            import datasets  # an extra, and slow to import
        except ImportError as error:
            raise DataError(f"{name} needs the package `datasets`: pip install 'acct[data]', or set paths.data to a folder.") from error
        try:
            loaded = datasets.load_dataset(entry.path, entry.config, split=self.split(task, split), revision=entry.revision)
            return list(loaded if limit is None else loaded.take(limit))
        except Exception as error:  # network, cache, split, script data sets: the library raises many kinds
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            folder = self.folder / task
            if NO_SCRIPTS in reason:
                advice = script_help(task, str(folder), self.split(task, split))
            else:
                advice = (
                    "Check the name, the split and the network (or HF_HUB_OFFLINE and the cache), or put the rows under "
                    f"{folder / self.split(task, split)}.jsonl and set data.source=folder."
                )
            raise DataError(f"{name} cannot be loaded: {reason.rstrip('.')}. {advice}") from error


def load_examples(source: DataSource, task: Task, split: str, tokenizer: Any = None, limit: int | None = None) -> list[Example]:
    """Every example of a split, in stored order.

    Args:
        source, task, split: which rows; "evaluation" is the split that the source scores on. tokenizer: counts tokens where the task
            cuts windows. limit: reads only so many rows.
    Raises:
        DataError: a row does not fit the schema, or two examples have one id.
    """
    rows = source.rows(task.name, split, limit)
    try:
        examples = task.examples(rows, tokenizer)
        unique(examples)
    except DataError as error:
        raise DataError(f"{source.where(task.name, split)}: {error}") from error
    if not examples:
        raise DataError(f"{source.where(task.name, split)}: {len(rows)} rows give no example of {task.name}: too short for its windows.")
    return examples


def unique(examples: list[Example]) -> None:
    """Refuse two examples with one id: records and manifests could not tell them apart."""
    seen: dict[str, int] = {}
    for index, example in enumerate(examples):
        if example.id in seen:
            raise DataError(f"examples {seen[example.id]} and {index} have one id, {example.id!r}. Remove one of the two rows.")
        seen[example.id] = index


def read_jsonl(path: Path, limit: int | None = None) -> list[Row]:
    """JSON lines, UTF-8; blank lines are skipped; NaN and Infinity are no JSON."""
    rows: list[Row] = []
    for number, line in _lines(path):
        if limit is not None and len(rows) >= limit:
            break
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: expected one JSON object a line, got {_short(line)} ({error}). Mend the line.") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object of named fields, got {_short(line)}. Mend the line.")
        rows.append(row)
    return rows


def read_json(path: Path, limit: int | None = None) -> list[Row]:
    """One JSON array of objects, or JSON lines."""
    for _, line in _lines(path):
        if line.strip():
            if not line.lstrip().startswith("["):
                return read_jsonl(path, limit)
            break
    text = "".join(line for _, line in _lines(path))
    try:
        rows = json.loads(text, parse_constant=_no_constant) if text.strip() else []
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected one JSON array of objects, but it cannot be read: {error}. Mend the file.") from error
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path}: row {index}: expected a JSON object of named fields, got {_short(repr(row))}. Mend the file.")
    return rows[:limit]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{number}: expected UTF-8 text, got {error}. Convert the file.") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}.") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _short(line: str) -> str:
    line = line.strip()
    return repr(line if len(line) <= 60 else line[:57] + "...")


def read_parquet(path: Path, limit: int | None = None) -> list[Row]:
    """Rows of a Parquet file."""
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: expected a Parquet file, but it cannot be read: {error}. Write or download it again.") from error
    return table.slice(0, limit).to_pylist()


def read_arrow(path: Path, limit: int | None = None) -> list[Row]:
    """Rows of an Arrow stream file, as `datasets.save_to_disk` writes it."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
            table = stream.read_all()
            return table.slice(0, limit).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: expected an Arrow stream file, but it cannot be read: {error}. Save it again.") from error
