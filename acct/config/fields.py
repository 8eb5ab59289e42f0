"""How the configuration marks a choice that the paper leaves open, and how a check phrases its complaint."""

from __future__ import annotations

import dataclasses
from typing import Any

from acct.errors import ConfigError


def silent(default: Any, why: str, spec: str = "") -> Any:
    """A dataclass field for a choice on which the paper is silent.

    Args:
        default: the value used; a list or dict is copied for every instance.
        why: the reason for this value, shown in the README's table.
        spec: section of the specification that uses it.
    """
    metadata = {"paper": f"silent: {why}", "spec": spec}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def check_range(name: str, value: float | int | None, low: float, high: float, hint: str = "", open_low: bool = False) -> None:
    """Raise ConfigError unless low <= value <= high (low < value with open_low); None passes."""
    if value is None:
        return
    inside = (low < value if open_low else low <= value) and value <= high
    if not inside:
        left = "(" if open_low else "["
        right = "inf)" if high == float("inf") else f"{high:g}]"
        raise ConfigError(f"{name} must lie in {left}{low:g}, {right}, got {value:g}.{' ' + hint if hint else ''}")


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise ConfigError unless value is one of the known names."""
    if value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}; got {value!r}.")
