"""Answers that no trained module touches, taken from another run's records instead of being computed again.

Target Full, Source Full and the target without a context are the same in every run of a direction: a variant, another retention. A
record is taken over when everything that it depends on is equal; anything else is computed as if there were no other run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acct.errors import AcctError
from acct.evaluation.samples import Sample
from acct.evaluation.store import RecordStore
from acct.methods.base import Method, SparseMethod
from acct.reporting.records import RECORDS, TRAINING_SEED, json_rows, read_records

logger = logging.getLogger(__name__)
_OF_INTERFACES = ("retention", "tail_tokens", "ranking", "variant", "seed", TRAINING_SEED)


def untrained(methods: Sequence[Method]) -> list[str]:
    """Names of the methods that neither a trained module nor the budget changes."""
    return [method.name for method in methods if not isinstance(method, SparseMethod)]


def agree(one: Mapping[str, Any], other: Mapping[str, Any], task: str) -> bool:
    """Whether two configurations give these methods the same answers on a task."""

    def bears(name: str) -> bool:
        kind, _, rest = name.partition(".")
        return name not in _OF_INTERFACES and kind not in ("interface", "compressors") and (kind != "sample" or rest == task)

    return all(one.get(name) == other.get(name) for name in {*one, *other} if bears(name))


def take_over(store: RecordStore, folder: Path | str, samples: Mapping[str, Sample], methods: Sequence[Method]) -> int:
    """Add the missing records of these methods from a finished run's evaluation folder; returns how many there were.

    A folder without finished records, of another configuration or damaged gives none.
    """
    names, taken = untrained(methods), 0
    if not names or not (Path(folder) / RECORDS).is_file():
        return 0
    try:
        found = read_records(folder)
    except AcctError as error:
        logger.warning("no answers are taken from %s: %s", folder, error)
        return 0
    (configuration,) = found.configurations.values()
    for task, sample in samples.items():
        if not agree(store.configuration, configuration, task):
            continue
        prompts = {example.id: example.prompt_hash for example in sample.examples}
        frame = found.only(task=task)
        for name in names:
            done = store.done(task, name)
            rows = [
                row
                for row in json_rows(frame[frame["method"] == name])
                if row["example"] not in done and row["version"] == sample.version and prompts.get(row["example"]) == row["prompt_hash"]
            ]
            if rows:
                store.append(task, rows)
                taken += len(rows)
    if taken:
        logger.info("%d answers without a transfer are those of %s", taken, folder)
    return taken
