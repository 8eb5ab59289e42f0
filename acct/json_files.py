"""The one reader of the package's own JSON files: what cannot be used is refused with the file, the reason and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from acct.errors import AcctError, ArtifactError

_WORDS = {dict: "an object", list: "a list of objects"}


def read_json(path: Path | str, remedy: str, kind: type = dict, finite: bool = True, error: type[AcctError] = ArtifactError) -> Any:
    """The value that a UTF-8 JSON file holds.

    Args:
        remedy: a sentence that ends every message: what makes the file anew. kind: dict or list, what the file must hold.
        finite: refuse NaN and Infinity, which are no JSON, here; False leaves them to a caller that names row and field.
        error: class of what is raised.
    Raises:
        AcctError: of class `error`: no file, unreadable, not UTF-8, not JSON, or a value of another kind.
    """
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse if finite else None)
    except FileNotFoundError as cause:
        raise error(f"{path}: no such file. {remedy}") from cause
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause.strerror or cause}. {remedy}") from cause
    except (ValueError, RecursionError) as cause:
        raise error(f"{path} is not JSON: {cause}. {remedy}") from cause
    if not isinstance(value, kind):
        raise error(f"{path} must hold {_WORDS[kind]}, got {type(value).__name__}. {remedy}")
    return value


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
