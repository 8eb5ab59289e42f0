"""Per-example records: their columns, and loading them from run folders that say what they are (spec 8).

An evaluation folder holds `records.parquet`, `configuration.json` (what the records were computed from) and `provenance.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from acct.errors import ArtifactError
from acct.reporting.rows import AGAIN, SCHEMA, check_frame, read_configuration, read_provenance
from acct.training.files import write_bytes

RECORDS, CONFIGURATION, PROVENANCE = "records.parquet", "configuration.json", "provenance.json"
FOLDER = "evaluation"
PARTS = "parts"
TRAINING_SEED = "training_seed"


@dataclass(frozen=True)
class Records:
    """Records of several directions, and what each was computed from.

    Attributes:
        frame: columns of SCHEMA. configurations: by direction. provenance: by direction.
    """

    frame: pd.DataFrame
    configurations: dict[str, dict[str, Any]] = field(default_factory=dict)
    provenance: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def directions(self) -> list[str]:
        return list(self.configurations) or list(dict.fromkeys(self.frame["direction"]))

    def only(self, **columns: str) -> pd.DataFrame:
        """Rows whose columns have the given values."""
        frame = self.frame
        for name, value in columns.items():
            frame = frame[frame[name] == value]
        return frame


def as_frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a frame of SCHEMA's columns and types.

    Raises:
        ArtifactError: a column is missing or has values of another type.
    """
    frame = pd.DataFrame(list(rows), columns=None if rows else list(SCHEMA))
    missing = [name for name in SCHEMA if name not in frame.columns]
    if missing:
        raise ArtifactError(f"records lack the column(s) {', '.join(missing)}; expected {', '.join(SCHEMA)}.")
    try:
        typed = {name: frame[name].astype(kind if kind != "str" else object) for name, kind in SCHEMA.items()}
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"records hold a value of another type than the schema's: {error}.") from error
    return pd.DataFrame(typed)


def json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame of SCHEMA as they stand in a part file: a likelihood that was not taken is None."""
    rows = [{str(column): value for column, value in row.items()} for row in frame.to_dict("records")]
    return [{**row, "nll_sum": row["nll_sum"] if row["nll_sum"] == row["nll_sum"] else None} for row in rows]


def write_records(frame: pd.DataFrame, path: Path | str) -> None:
    """Write a Parquet file, whole or not at all."""
    import io

    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, compression="zstd")
    write_bytes(path, buffer.getvalue())


def read_records(folder: Path | str) -> Records:
    """Records of one evaluation folder, checked.

    Raises:
        ArtifactError: no provenance, no configuration, no rows, or rows that `acct.reporting.rows.check_frame` refuses.
    """
    folder = Path(folder)
    for name, meaning in ((PROVENANCE, "how it was made"), (CONFIGURATION, "what it was computed from"), (RECORDS, "its records")):
        if not (folder / name).is_file():
            raise ArtifactError(
                f"{folder} lacks {name}, {meaning}: it does not enter a table. Run `acct evaluate` to its end, or remove it."
            )
    configuration, provenance = read_configuration(folder / CONFIGURATION), read_provenance(folder / PROVENANCE)
    where = folder / RECORDS
    try:
        frame = as_frame(pd.read_parquet(where).to_dict("records"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{where} is not a readable Parquet file: {str(error).rstrip('.')}. Evaluate again.") from error
    except ArtifactError as error:
        raise ArtifactError(f"{where}: {error} {AGAIN}") from error
    if frame.empty:
        raise ArtifactError(f"{where} holds no records. Evaluate again, or remove the folder.")
    direction = configuration["direction"]
    check_frame(frame, where, direction)
    return Records(frame, {direction: configuration}, {direction: provenance})


def unfinished(results_root: Path | str, scale: str) -> list[Path]:
    """Evaluation folders that have begun and hold no records.parquet yet: running, or killed. They stay out of tables until they end.

    A folder whose other files are missing was tampered with, and is refused by `read_records`.
    """
    folders = sorted((Path(results_root) / scale).glob(f"*/{FOLDER}"))
    return [folder for folder in folders if (folder / PARTS).is_dir() and not (folder / RECORDS).is_file()]


def training_seed(configuration: Mapping[str, Any]) -> int:
    """Seed that a run was trained with (runtime.seed); 0, the default, is not written down."""
    return int(configuration.get(TRAINING_SEED, 0))


def _evaluated(results_root: Path | str, scale: str) -> list[dict[str, Any]]:
    """Configurations of the runs of a scale whose evaluation has ended; shortened runs do not count."""
    left_out = unfinished(results_root, scale)
    folders = sorted((Path(results_root) / scale).glob(f"*/{FOLDER}"))
    found = [read_configuration(folder / CONFIGURATION) for folder in folders if folder not in left_out]
    return [one for one in found if not one.get("shortened")]


def settings(results_root: Path | str, scale: str, seed: int = 0) -> list[tuple[str, float]]:
    """Variant and retention of every evaluated run that was trained with a seed, each once."""
    found = [one for one in _evaluated(results_root, scale) if training_seed(one) == seed]
    return sorted({(str(one.get("variant", "")), float(one["retention"])) for one in found})


def training_seeds(results_root: Path | str, scale: str) -> dict[tuple[str, float], list[int]]:
    """By variant and retention, the training seeds of the runs that were evaluated, each once, rising."""
    found: dict[tuple[str, float], set[int]] = {}
    for one in _evaluated(results_root, scale):
        found.setdefault((str(one.get("variant", "")), float(one["retention"])), set()).add(training_seed(one))
    return {setting: sorted(found[setting]) for setting in sorted(found)}


def load_records(
    results_root: Path | str, scale: str, variant: str = "", retention: float | None = None, methods: Sequence[str] = (), seed: int = 0
) -> Records:
    """Records of every run folder of a scale with this variant, retention and training seed; unfinished ones are left out.

    Args:
        results_root, scale: <results_root>/<scale>/<run>/evaluation are read, in the order of their names.
        variant: "" for runs without one. retention: None takes the only one there is.
        methods: rows that every direction must have. seed: of training; runs of other seeds are never mixed in.
    Raises:
        ArtifactError: nothing to read, a folder that `read_records` refuses, two runs of one direction, mixed budgets or task versions,
            examples of a task of which neither direction's contain the other's, or a missing row.
    """
    root = Path(results_root) / scale
    left_out = unfinished(results_root, scale)
    folders = [folder for folder in sorted(root.glob(f"*/{FOLDER}")) if folder not in left_out]
    if not folders:
        begun = f" Not finished yet: {', '.join(folder.parent.name for folder in left_out)}." if left_out else ""
        raise ArtifactError(f"{root} holds no evaluated run (no <run>/{FOLDER} in it). Run `acct evaluate` first.{begun}")
    loaded = [(folder, read_records(folder)) for folder in folders]
    kept: dict[str, tuple[Path, Records]] = {}
    shortened = 0
    for folder, records in loaded:
        ((direction, configuration),) = records.configurations.items()
        other = configuration.get("variant", "") != variant or (retention is not None and configuration.get("retention") != retention)
        other = other or training_seed(configuration) != seed
        shortened += not other and bool(configuration.get("shortened"))
        if other or configuration.get("shortened"):
            continue
        if direction in kept:
            budget = configuration.get("retention")
            raise ArtifactError(f"{folder} and {kept[direction][0]} both hold {direction} at retention {budget}. Remove one.")
        kept[direction] = (folder, records)
    if not kept:
        left_out = f" {shortened} shortened run(s) stay out of tables." if shortened else ""
        which = f"variant {variant!r} and retention {retention}" + (f", trained with seed {seed}" if seed else "")
        seeds = sorted({training_seed(c) for _, records in loaded for c in records.configurations.values()} - {seed})
        left_out += f" Other training seeds are there: {', '.join(map(str, seeds))} (runtime.seed)." if seeds else ""
        raise ArtifactError(f"{root} holds no run of {which}.{left_out} Evaluate one.")
    _agree(kept)
    for folder, records in kept.values():
        missing = [name for name in methods if name not in set(records.frame["method"])]
        if missing:
            raise ArtifactError(f"{folder} lacks the row(s) of {', '.join(missing)}. Evaluate these methods: the records there are kept.")
    frame = pd.concat([records.frame for _, records in kept.values()], ignore_index=True)
    joined = Records(frame)
    for _, records in kept.values():
        joined.configurations.update(records.configurations)
        joined.provenance.update(records.provenance)
    return joined


def _agree(kept: dict[str, tuple[Path, Records]]) -> None:
    """Raise where runs of one table were computed under different settings or on different examples."""
    shared = ("retention", "tail_tokens", "max_new_tokens", "seed")
    first_folder, first = next(iter(kept.values()))
    base = next(iter(first.configurations.values()))
    versions: dict[str, tuple[int, str]] = {}
    samples: dict[str, tuple[frozenset[str], str]] = {}
    for direction, (folder, records) in kept.items():
        configuration = records.configurations[direction]
        for name in shared:
            if configuration.get(name) != base.get(name):
                raise ArtifactError(
                    f"mixed configurations: {name} is {base.get(name)} in {first_folder} and {configuration.get(name)} in {folder}. "
                    "A table compares runs of one setting."
                )
        for task, rows in records.frame.groupby("task"):
            version = int(rows["version"].iloc[0])
            known, where = versions.setdefault(str(task), (version, direction))
            if version != known:
                raise ArtifactError(f"mixed configurations: {task} is version {known} in {where}, {version} in {direction}. Run again.")
            ids = frozenset(rows["example"])
            expected, where = samples.setdefault(str(task), (ids, direction))
            if not (ids <= expected or expected <= ids):
                raise ArtifactError(
                    f"mixed configurations: {task} has {len(expected)} examples in {where} and {len(ids)} in {direction}, "
                    f"{len(ids ^ expected)} of them not shared. Directions answer the same examples, or one of them the first of "
                    "another's: evaluate again."
                )
            if len(ids) > len(expected):
                samples[str(task)] = (ids, direction)
