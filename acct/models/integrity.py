"""Whether the files of a model folder are those that were written: sizes and hashes, and tokenizer files that agree with each other.

A folder may carry `provenance.json` with "files": {name: {"bytes", "sha256"}}, as the script that assembled it leaves it; then every file
named there is compared before anything is loaded. Without it nothing says what the files should be, and a run's provenance keeps what they
were (the models' fingerprints).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from acct.errors import ModelError
from acct.json_files import read_json

RECORD = "provenance.json"
AGAIN = "Fetch or assemble the model again."


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content; gigabytes are read once in a process while the file stays as it is."""
    found = path.stat()
    return _file_sha256(path.resolve(), found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=64)
def _file_sha256(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_files(folder: Path) -> None:
    """Compare a folder with its own record, if it has one.

    Raises:
        ModelError: the record is damaged; a file is missing, of another size (a download that stopped), or of another content.
    """
    path = folder / RECORD
    if not path.is_file():
        return
    files = read_json(path, AGAIN, error=ModelError).get("files", {})
    if not isinstance(files, dict) or not all(isinstance(one, dict) and {"bytes", "sha256"} <= set(one) for one in files.values()):
        raise ModelError(f"{path}: 'files' must name each file's bytes and sha256. {AGAIN}")
    for name, expected in files.items():
        file = folder / name
        if not file.is_file():
            raise ModelError(f"{folder} lacks {name}, which its {RECORD} names. {AGAIN}")
        if (size := file.stat().st_size) != expected["bytes"]:
            raise ModelError(f"{file} has {size:,} bytes, its {RECORD} says {expected['bytes']:,}: the file is not whole. {AGAIN}")
    for name, expected in files.items():
        if (got := file_sha256(folder / name)) != expected["sha256"]:
            raise ModelError(f"{folder / name} has sha256 {got[:16]}..., its {RECORD} says {str(expected['sha256'])[:16]}.... {AGAIN}")


def check_tokenizer_files(folder: Path) -> None:
    """Special tokens of `tokenizer_config.json` must be those of `tokenizer.json`, id by id; nothing is said where a file is missing.

    Raises:
        ModelError: the first id on which the two files differ.
    """
    paths = [folder / name for name in ("tokenizer_config.json", "tokenizer.json")]
    if not all(path.is_file() for path in paths):
        return
    settings, whole = (read_json(path, AGAIN, finite=False, error=ModelError) for path in paths)
    stated = settings.get("added_tokens_decoder") or {}
    there = {entry["id"]: entry["content"] for entry in whole.get("added_tokens") or [] if {"id", "content"} <= set(entry)}
    vocabulary = (whole.get("model") or {}).get("vocab")
    words = {index: word for word, index in vocabulary.items()} if isinstance(vocabulary, Mapping) else {}
    for index, entry in sorted(stated.items(), key=lambda item: int(item[0])):
        content = entry.get("content") if isinstance(entry, Mapping) else None
        found = there.get(int(index), words.get(int(index)))
        if content != found:
            raise ModelError(
                f"{folder}: id {index} is {content!r} in tokenizer_config.json and {found!r} in tokenizer.json. The files are of two "
                f"tokenizers. {AGAIN}"
            )


def check_stop_token(tokenizer: PreTrainedTokenizerBase, stops: Iterable[int], name: str) -> None:
    """The tokenizer's end token must be one at which the model stops, where both state one.

    Args:
        stops: of the model's configuration and generation settings. name: of the model, for the message.
    Raises:
        ModelError: it is another one: answers would not end, or the tokenizer is another model's.
    """
    own, stops = tokenizer.eos_token_id, sorted(set(stops))
    if own is not None and stops and own not in stops:
        raise ModelError(
            f"{name}: the tokenizer ends text with id {own} ({tokenizer.eos_token!r}), the model stops at {stops}. The tokenizer files "
            f"belong to another model. {AGAIN}"
        )


def stops_of(config: Any, generation: Any) -> list[int]:
    """Every end-of-sequence id that a model's configuration or generation settings name."""
    found: list[int] = []
    for place in (config, generation):
        stated = getattr(place, "eos_token_id", None)
        found += [] if stated is None else list(stated) if isinstance(stated, list | tuple) else [int(stated)]
    return found
