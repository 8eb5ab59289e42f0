"""Errors that a user or a file can cause. Each message says what is wrong, what was expected, what came, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AcctError(Exception):
    """Base of every error that the package raises on purpose; the command line prints it without a traceback."""


class ConfigError(AcctError):
    """A setting is outside its range, contradicts another one, or is not known."""


class InputError(AcctError):
    """A context, a query or token ids cannot be used as given."""


class ModelError(AcctError):
    """A model cannot be loaded, is of an unknown family, or holds NaN or Inf."""


class VocabularyError(AcctError):
    """Two models do not share one token-to-id mapping."""


class BudgetError(AcctError):
    """A budget that no allocation can meet."""


class SelectionError(AcctError):
    """A selection that breaks its own invariants or does not fit the states it is applied to."""


class ArtifactError(AcctError):
    """A checkpoint, artifact or record file is missing, truncated, tampered with or built from other inputs."""


class DataError(AcctError):
    """A data file is missing, malformed (file and line are named) or of another schema."""


class InterfaceError(AcctError):
    """Native states mounted at every position do not reproduce the native run."""


class UnknownName(ConfigError):
    """A registry has no such entry."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        known = sorted(known)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        super().__init__(f"unknown {kind} {name!r}. Known: {', '.join(known)}.{hint}")
