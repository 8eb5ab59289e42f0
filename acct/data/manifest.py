"""The fixed sample of evaluation examples: ids and content hashes, drawn once from a seed, the same for every direction (spec 8).

The order of a task's sample sorts its ids by SHA-256 of (seed, task, id). It depends neither on the order of the rows nor on any
library's random generator, and a smaller sample is a prefix of a larger one.

`ManifestFile` is the manifest on the disk that all runs of a scale hold to: the first run that scores a task draws its sample, and every
later one, of whatever direction or method, must find the same examples with the same content.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from acct.data.examples import Example
from acct.data.source import unique
from acct.errors import ArtifactError, DataError
from acct.json_files import read_json

FORMAT = 1
_NAMED = 5  # changed ids that an error lists


def draw(examples: Sequence[Example], count: int | None, seed: int) -> list[Example]:
    """The first `count` examples (all: None) in the seed's order.

    Raises:
        DataError: fewer examples than asked for, a count below 1, or an id twice.
    """
    unique(list(examples))
    if count is not None and not 1 <= count <= len(examples):
        task = examples[0].task if examples else "the task"
        raise DataError(f"{task}: asked for {count} examples of {len(examples)}. Lower evaluation.examples or supply more rows.")

    def place(example: Example) -> bytes:
        return hashlib.sha256(f"{seed}\n{example.task}\n{example.id}".encode()).digest()

    return sorted(examples, key=place)[:count]


@dataclass(frozen=True)
class TaskSample:
    """The sample of one task.

    Attributes:
        version: the task's. split: the source's name of it. available: examples it was drawn from.
        ids, hashes: of the sample, in its order; a hash covers the whole content of the example.
        settings: what the examples were made with: data set and revision on the hub, fields of the task.
    """

    version: int
    split: str
    available: int
    ids: tuple[str, ...]
    hashes: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.hashes) or len(set(self.ids)) != len(self.ids):
            raise ArtifactError(f"a sample needs one hash for each id and no id twice, got {len(self.ids)} ids, {len(self.hashes)} hashes.")


@dataclass(frozen=True)
class Manifest:
    """The samples of all tasks, drawn from one seed."""

    seed: int
    tasks: Mapping[str, TaskSample]

    @property
    def examples(self) -> int:
        return sum(len(sample.ids) for sample in self.tasks.values())

    def digest(self) -> str:
        """SHA-256 of the whole content, 64 hex digits: what a run's provenance names."""
        return hashlib.sha256(_canonical(self.payload()).encode()).hexdigest()

    def payload(self) -> dict[str, Any]:
        return {"format": FORMAT, "seed": self.seed, "tasks": {name: asdict(sample) for name, sample in sorted(self.tasks.items())}}

    def with_task(
        self, name: str, version: int, split: str, examples: Sequence[Example], count: int | None, settings: Mapping[str, Any] | None = None
    ) -> Manifest:
        """The manifest with one task's sample drawn (again)."""
        drawn = draw(examples, count, self.seed)
        ids, hashes = tuple(e.id for e in drawn), tuple(e.content_hash() for e in drawn)
        sample = TaskSample(version, split, len(examples), ids, hashes, dict(settings or {}))
        return Manifest(self.seed, {**self.tasks, name: sample})

    def select(self, name: str, version: int, examples: Sequence[Example], count: int | None = None) -> list[Example]:
        """The task's sample, or its first `count`, out of freshly loaded examples.

        Raises:
            DataError: the task is not in the manifest, its version differs, an example is gone or its content changed upstream.
        """
        if name not in self.tasks:
            raise DataError(f"the manifest has no sample of {name}; it has {', '.join(sorted(self.tasks)) or 'none'}. Draw it again.")
        sample = self.tasks[name]
        if version != sample.version:
            raise DataError(f"{name}: the manifest was drawn at task version {sample.version}, the code has {version}. Draw it again.")
        if count is not None and not 1 <= count <= len(sample.ids):
            raise DataError(f"{name}: asked for {count} examples, the manifest holds {len(sample.ids)}. Draw a larger one.")
        unique(list(examples))
        by_id = {example.id: example for example in examples}
        wanted = list(zip(sample.ids, sample.hashes))[:count]
        gone = [key for key, _ in wanted if key not in by_id]
        changed = [key for key, value in wanted if key in by_id and by_id[key].content_hash() != value]
        if gone or changed:
            parts = [f"{len(keys)} {word} ({_listed(keys)})" for word, keys in (("gone", gone), ("changed", changed)) if keys]
            raise DataError(
                f"{name}: of the manifest's {len(wanted)} examples, {' and '.join(parts)}. The data is not what the manifest was drawn "
                "from: restore its revision, or draw a new manifest and run every method again."
            )
        return [by_id[key] for key, _ in wanted]

    def save(self, path: Path) -> None:
        """Write JSON, complete or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(json.dumps({**self.payload(), "digest": self.digest()}, indent=1) + "\n", encoding="utf-8")
            os.replace(part, path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise ArtifactError(f"cannot write {path}: {error.strerror or error}. What stood there before is kept.") from error

    @staticmethod
    def load(path: Path) -> Manifest:
        """Read what `save` wrote.

        Raises:
            ArtifactError: the file is missing, is not a manifest, has another format, or was altered.
        """
        path = Path(path)
        stored = read_json(path, "Draw the manifest again.")
        if stored.get("format") != FORMAT:
            raise ArtifactError(f"{path}: field 'format': expected {FORMAT}, got {stored.get('format')!r}. Draw the manifest again.")
        try:
            tasks = {
                name: TaskSample(
                    int(s["version"]), str(s["split"]), int(s["available"]), tuple(s["ids"]), tuple(s["hashes"]), dict(s["settings"])
                )
                for name, s in stored["tasks"].items()
            }
            manifest = Manifest(int(stored["seed"]), tasks)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"{path}: a field is missing or of another type ({error}). Draw the manifest again.") from error
        if stored.get("digest") != manifest.digest():
            raise ArtifactError(f"{path}: field 'digest' does not fit the content: the file was altered. Draw the manifest again.")
        return manifest


@dataclass(frozen=True)
class ManifestFile:
    """A manifest file that samples are held to, and drawn into where it has none.

    Attributes:
        path: of the file; made with the first sample. seed: of the draw. splits: the source's name of each task's scored split.
        settings: by task, what its examples are made with. redraw: replace a sample that does not fit instead of refusing.
    """

    path: Path
    seed: int
    splits: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    redraw: bool = False

    def select(self, name: str, version: int, examples: Sequence[Example], count: int | None = None) -> list[Example]:
        """The task's sample of the file, drawn and stored first where the file has none, or one that is too small.

        Raises:
            DataError: the seed, the version, the split, a setting, or the content of examples is not what the file was drawn from; it is
                named. ArtifactError: the file is damaged or cannot be written.
        """
        with self._locked():
            manifest = Manifest.load(self.path) if self.path.is_file() else Manifest(self.seed, {})
            try:
                return self._held(manifest, name, version, examples, count)
            except DataError as error:
                if not self.redraw:
                    raise DataError(
                        f"{error} The manifest is {self.path}; evaluation.restart=true draws this task again, evaluation.manifest=<file> "
                        "keeps another one."
                    ) from error
            kept = manifest.tasks if manifest.seed == self.seed else {}
            return self._drawn(Manifest(self.seed, {task: s for task, s in kept.items() if task != name}), name, version, examples, count)

    def _held(self, manifest: Manifest, name: str, version: int, examples: Sequence[Example], count: int | None) -> list[Example]:
        stored = manifest.tasks.get(name)
        if manifest.seed != self.seed:
            raise DataError(f"{name}: the manifest was drawn with evaluation.seed {manifest.seed}, now it is {self.seed}.")
        if stored is None:
            return self._drawn(manifest, name, version, examples, count)
        now = {"split": self.splits.get(name, ""), **self.settings.get(name, {})}
        before = {"split": stored.split, **stored.settings}
        for key in sorted({*now, *before}):
            if now.get(key) != before.get(key):
                raise DataError(f"{name}: the manifest was drawn with {key} {before.get(key)!r}, now it is {now.get(key)!r}.")
        wanted = len(examples) if count is None else count
        if wanted <= len(stored.ids):
            return manifest.select(name, version, examples, wanted)
        held = manifest.select(name, version, examples)
        larger = draw(examples, count, self.seed)
        if larger[: len(held)] != held:
            raise DataError(
                f"{name}: {len(held)} examples were drawn from {stored.available}, and {wanted} drawn from {len(examples)} do not begin "
                "with them: the data set has grown."
            )
        return self._drawn(manifest, name, version, examples, count)

    def _drawn(self, manifest: Manifest, name: str, version: int, examples: Sequence[Example], count: int | None) -> list[Example]:
        updated = manifest.with_task(name, version, self.splits.get(name, ""), examples, count, self.settings.get(name))
        updated.save(self.path)
        return updated.select(name, version, examples)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time reads and extends the file: directions are evaluated side by side."""
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = lock.open("w")
        except OSError as error:
            raise ArtifactError(f"cannot write {lock}: {error.strerror or error}. Set evaluation.manifest to a writable place.") from error
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _listed(ids: Sequence[str]) -> str:
    more = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")
