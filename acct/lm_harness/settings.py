"""From lm-eval's `--model_args` (or `--metadata`) to this package's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acct.config.root import Config, compose, field_names
from acct.errors import ConfigError, UnknownName
from acct.transfer import read_config

GROUPS = ("direction", "scale", "experiment", "debug")


def is_setting(name: str) -> bool:
    """Whether a model argument belongs to the configuration: the run folder, a group, or a dotted field."""
    return name == "run" or name in GROUPS or "." in name


def configuration(arguments: Mapping[str, Any]) -> Config:
    """The configuration that model arguments name.

    Args:
        arguments: `run=<folder>` reads the one that the folder was trained with; otherwise `direction`, `scale`, `experiment` and
            `debug` choose as on the command line. Dotted fields change single values in both cases (`budget.retention=0.5`).
    Raises:
        ConfigError: an argument that is no setting, or a group beside `run`. ArtifactError: `run` is no run folder.
    """
    arguments = dict(arguments)
    fields = {name: value for name, value in arguments.items() if "." in name}
    known = field_names()
    for name in arguments:
        if not is_setting(name) or ("." in name and name not in known):
            raise UnknownName("model argument", name, [*known, *GROUPS, "run"])
    run = arguments.get("run")
    groups = {name: arguments[name] for name in GROUPS if arguments.get(name) is not None}
    if run is None:
        return compose([*(f"{name}={value}" for name, value in groups.items()), *(_override(*item) for item in fields.items())])
    if groups:
        raise ConfigError(f"run={run} already says which direction and scale: leave out {', '.join(groups)}, or leave out run.")
    return read_config(run, fields)


def _override(name: str, value: Any) -> str:
    """A value as Hydra's grammar writes it; text is quoted, so that blanks, colons and slashes keep no meaning."""
    if value is None:
        return f"{name}=null"
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"{name}='{quoted}'"
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"
