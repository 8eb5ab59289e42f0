"""`acct reproduce table1`: train and evaluate the six directions of a scale, then print their table."""

from __future__ import annotations

import time
from pathlib import Path

from acct.config.root import compose
from acct.config.training import STAGES
from acct.errors import AcctError, ConfigError, UnknownName

SIX: dict[str, tuple[str, ...]] = {
    "micro": (
        "micro_qwen3_small_to_large", "micro_qwen3_large_to_small", "micro_llama_small_to_large",
        "micro_llama_large_to_small", "micro_qwen2_small_to_large", "micro_qwen2_large_to_small",
    ),
    "paper": ("qwen3_4b_to_8b", "qwen3_8b_to_4b", "llama_3b_to_8b", "llama_8b_to_3b", "qwen25_7b_to_32b", "qwen25_32b_to_7b"),
    "tiny": ("tiny_qwen3", "tiny_llama", "tiny_qwen2"),
}  # fmt: skip
TABLES = ("table1",)
WORKER_PROGRESS_SECONDS = 15  # lines of several directions share one terminal


def reproduce(arguments: list[str]) -> None:
    """Run `acct train` and `acct evaluate` for every direction, side by side, and write the table.

    Args:
        arguments: the table's name, then overrides; `direction=a,b` restricts the directions, `jobs=n` the processes.
    Raises:
        UnknownName: no such table. ConfigError: a bad override. AcctError: no direction finished.
    """
    from acct.cli.evaluation import tables_of_scale
    from acct.locations import ensure_data
    from acct.reproduce import phase_table, run_directions

    table = arguments[0] if arguments and "=" not in arguments[0] else ""
    if table not in TABLES:
        raise UnknownName("table", table, TABLES)
    given = dict(argument.split("=", 1) for argument in arguments[1:] if "=" in argument)
    names = given.pop("direction", "")
    jobs = given.pop("jobs", None)
    if jobs is not None and not (jobs.isdecimal() and int(jobs) > 0):
        raise ConfigError(f"jobs must be a whole number of processes, at least 1, got {jobs!r}.")
    overrides = [f"{name}={value}" for name, value in given.items()]
    config = compose(overrides)
    directions = names.split(",") if names else SIX[config.scale]
    for direction in directions:
        compose([*overrides, f"direction={direction}"])  # a wrong name fails before anything runs
    ensure_data(config, [config.data.dataset], [config.data.split, config.data.held_out_split])
    ensure_data(config, config.evaluation.tasks, [config.evaluation.split])
    results = Path(config.paths.results) / config.scale
    print(f"{table}: {len(directions)} directions, stages {', '.join(STAGES)}, then evaluation; everything goes to {results}", flush=True)
    started = time.monotonic()
    shown = overrides if "runtime.progress_seconds" in given else [*overrides, f"runtime.progress_seconds={WORKER_PROGRESS_SECONDS}"]
    outcomes = run_directions(list(directions), shown, results, None if jobs is None else int(jobs))
    lines = tables_of_scale(config)
    print("\n" + (Path(config.paths.tables) / f"{table}.md").read_text(encoding="utf-8"))
    print("\n".join(lines))
    print("\n" + phase_table(list(directions), results))
    print(f"{len(directions)} directions in {time.monotonic() - started:.0f} s")
    failures = [f"{outcome.direction}: {outcome.failed}" for outcome in outcomes if outcome.failed]
    if failures:
        raise AcctError("the table is incomplete; run the same command again, it keeps what is finished. Failed: " + "; ".join(failures))
