"""What a set of records must be before anything is computed from it: one configuration, each answer once, values in range (spec 8).

The same checks hold for the part files of a run that goes on and for its finished `records.parquet`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from acct.errors import ArtifactError, UnknownName
from acct.json_files import read_json
from acct.reporting.names import METHODS

AGAIN = "Evaluate again (evaluation.restart=true), or remove the folder."
METRICS = ("f1", "accuracy", "perplexity")
SCHEMA: dict[str, str] = {
    "direction": "str",  # name of the directed pair
    "task": "str",
    "version": "int64",  # of the task: raised with every change of prompt or scoring
    "metric": "str",  # f1, accuracy, perplexity
    "contextual": "bool",  # the task brings a passage of its own
    "method": "str",
    "example": "str",  # id, the same for every direction
    "prompt_hash": "str",
    "prediction": "str",  # generated text, or the chosen candidate's number; empty for perplexity
    "score": "float64",  # F1 or accuracy in [0, 1]; perplexity of the example
    "nll_sum": "float64",  # NLL of the gold candidate or the continuation, in nats; NaN where nothing was scored
    "tokens": "int64",  # scored or generated tokens
    "context_tokens": "int64",  # N of what is mounted or read
    "mounted_bytes": "int64",  # measured, the example's share of its batch
    "budget_bytes": "int64",  # 2 P k d bytes per number
    "dropped_tokens": "int64",  # context tokens lost to truncation
}
_WORDS = {"str": "text", "int64": "a whole number", "bool": "true or false", "float64": "a number"}


def line_fault(row: Any) -> str | None:
    """What is wrong with one record as read from JSON; None where every column is there with a value of its type."""
    if not isinstance(row, dict):
        return f"expected an object, got {type(row).__name__}"
    missing = [name for name in SCHEMA if name not in row]
    if missing:
        return f"it lacks {', '.join(missing)}"
    for name, kind in SCHEMA.items():
        if not _fits(row[name], kind, name == "nll_sum"):
            return f"{name} must be {_WORDS[kind]}, got {row[name]!r}"
    return None


def _fits(value: Any, kind: str, optional: bool) -> bool:
    if value is None:
        return optional
    if kind in ("str", "bool"):
        return isinstance(value, str if kind == "str" else bool)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) if kind == "int64" else isinstance(value, int | float) and math.isfinite(value)


def check_frame(frame: pd.DataFrame, where: Path | str, direction: str | None, remedy: str = AGAIN) -> None:
    """Refuse records that cannot stand side by side.

    Args:
        frame: columns of SCHEMA. where: the file, for the message. direction: the only one allowed; None where none is known yet.
        remedy: a sentence that ends every message.
    Raises:
        ArtifactError: rows of two configurations (direction, version, metric or kind of a task, prompt of an example), an answer
            twice, an unknown method or metric, or a score outside its range.
    """
    directions = sorted(frame["direction"].unique())
    if len(directions) > 1 or (direction is not None and directions not in ([], [direction])):
        said = "" if direction is None else f", configuration.json says {direction!r}"
        raise ArtifactError(f"{where} mixes configurations: direction is {', '.join(directions)}{said}. {remedy}")
    for keys, columns in ((["task"], ("version", "metric", "contextual")), (["task", "example"], ("prompt_hash",))):
        for column in columns:
            different = frame.groupby(keys)[column].nunique()
            if (different > 1).any():
                key = different.index[different > 1][0]
                name = key if isinstance(key, str) else key[-1]
                values = sorted(map(str, frame[frame[keys[-1]] == name][column].unique()))
                raise ArtifactError(f"{where} mixes configurations: {column} of {name} is {' and '.join(values)}. {remedy}")
    repeated = frame.duplicated(["task", "method", "example"])
    if repeated.any():
        row = frame[repeated].iloc[0]
        raise ArtifactError(f"{where} holds {row['method']} on {row['example']} more than once. {remedy}")
    for column, known in (("metric", METRICS), ("method", METHODS)):
        unknown = sorted(set(frame[column]) - set(known))
        if unknown:
            raise ArtifactError(f"{where}: {UnknownName(column, unknown[0], known)} {remedy}")
    fractions = frame[frame["metric"] != "perplexity"]
    measured = frame[frame["metric"] == "perplexity"]
    bad = fractions[~fractions["score"].between(0, 1)]
    broken = measured[~np.isfinite(measured["nll_sum"].astype(float)) | (measured["tokens"] < 1)]
    for rows in (bad, broken):
        if len(rows):
            row = rows.iloc[0]
            values = f"score {row['score']} and NLL {row['nll_sum']}"
            raise ArtifactError(f"{where}: {row['method']} on {row['example']} has {values}, which is out of range. {remedy}")


def check_sample(frame: pd.DataFrame, where: Path | str, prompts: Mapping[str, str], remedy: str = AGAIN) -> None:
    """Refuse records of one task that were not made from its sample.

    Args:
        prompts: prompt hash of every example of the sample, by id.
    Raises:
        ArtifactError: an example that is not in the sample, or one with another prompt.
    """
    for example, found in frame[["example", "prompt_hash"]].itertuples(index=False):
        if example not in prompts:
            raise ArtifactError(f"{where} holds {example}, which is not in the sample of {len(prompts)} examples. {remedy}")
        if prompts[example] != found:
            raise ArtifactError(
                f"{where} mixes configurations: prompt_hash of {example} is {found}, the sample's is {prompts[example]}. {remedy}"
            )


def read_configuration(path: Path) -> dict[str, Any]:
    """What the records of a folder were computed from.

    Raises:
        ArtifactError: not a JSON object, or without a direction and a retention in (0, 1].
    """
    found: dict[str, Any] = read_json(path, AGAIN)
    retention = found.get("retention")
    if not isinstance(found.get("direction"), str) or not isinstance(retention, int | float) or not 0 < retention <= 1:
        raise ArtifactError(
            f"{path} must name a direction and a retention in (0, 1], got {found.get('direction')!r} and {retention!r}. {AGAIN}"
        )
    return found


def read_provenance(path: Path) -> dict[str, Any]:
    """How the records of a folder were made.

    Raises:
        ArtifactError: not a JSON object, or capacities that are not counts by layer and head at a context length.
    """
    found: dict[str, Any] = read_json(path, AGAIN)
    capacities = found.get("capacities")
    if capacities is not None and not _are_capacities(capacities):
        raise ArtifactError(f"{path}: capacities must hold context_tokens and counts, a whole number for every layer and head. {AGAIN}")
    return found


def _are_capacities(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("context_tokens"), int):
        return False
    layers = value.get("counts")
    if not isinstance(layers, list) or not layers or not all(isinstance(heads, list) and heads for heads in layers):
        return False
    return len({len(heads) for heads in layers}) == 1 and all(isinstance(count, int) for heads in layers for count in heads)
