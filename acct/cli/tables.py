"""What `acct tables` prints: the tables of a scale from whatever its run folders hold, then what is missing and the command for it."""

from __future__ import annotations

from pathlib import Path

from acct.cli.plan import run_names
from acct.config.root import Config
from acct.reporting.records import FOLDER, RECORDS

NUMBERED = ("table1", "table2", "table3")


def missing_lines(config: Config) -> list[str]:
    """One line for each table whose runs are not all evaluated; random models (scale=tiny) have no tables."""
    if config.scale == "tiny":
        return []
    root = Path(config.paths.results) / config.scale
    lines = []
    for table in NUMBERED:
        runs = run_names(table, config.scale, config.reproduce.seeds or [config.runtime.seed])
        missing = [name for name in runs if not (root / name / FOLDER / RECORDS).is_file()]
        if missing:
            seeds = f" reproduce.seeds=[{','.join(map(str, config.reproduce.seeds))}]" if config.reproduce.seeds else ""
            seeds = seeds or (f" runtime.seed={config.runtime.seed}" if config.runtime.seed else "")
            command = f"acct reproduce {table} scale={config.scale}{seeds}"
            lines.append(f"{table}: {len(missing)} of {len(runs)} runs are missing ({', '.join(missing)}): {command}")
    return lines


def tables_and_missing(config: Config) -> list[str]:
    """Write the tables of a scale; returns what to print.

    Raises:
        ArtifactError: nothing was evaluated, or records that are refused.
    """
    from acct.cli.evaluation import tables_of_scale

    return [*tables_of_scale(config), *missing_lines(config)]
