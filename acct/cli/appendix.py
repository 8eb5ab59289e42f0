"""`acct appendix [table ...]`: tables of the appendix from configuration, geometry and records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from acct.config.root import compose
from acct.errors import ConfigError


def named(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of tables or figures, and overrides: an argument with "=" is an override.

    Raises:
        ConfigError: an option; sweeps make no sense here.
    """
    options = [argument for argument in arguments if argument.startswith("-")]
    if options:
        raise ConfigError(f"this command takes names and overrides, got {options[0]}. Write e.g. table5 scale=paper.")
    return [one for one in arguments if "=" not in one], [one for one in arguments if "=" in one]


def appendix(arguments: list[str]) -> list[str]:
    """Write the tables that are named, or all, into `paths.tables`; returns what to print: the Markdown and the files.

    Raises:
        UnknownName: no such table. ConfigError: a bad override.
    """
    from acct.cli.evaluation import bootstrap_of
    from appendix_tables.inputs import Inputs
    from appendix_tables.registry import write_appendix_tables

    names, overrides = named(arguments)
    config = compose(overrides)
    kept = tuple(one for one in overrides if one.partition("=")[0] not in ("direction", "experiment"))
    files = write_appendix_tables(Inputs(kept, bootstrap_of(config)), Path(config.paths.tables), names)
    return [*(path.read_text(encoding="utf-8") for path in files if path.suffix == ".md"), *(f"wrote {path}" for path in files)]
