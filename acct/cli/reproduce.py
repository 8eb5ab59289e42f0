"""`acct reproduce table1|table2|table3|appendix|all`: train and evaluate the runs of a table side by side, then print what they give."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from acct.cli.plan import experiments_of, plan, variant_tasks
from acct.config.root import Config, compose
from acct.config.training import STAGES
from acct.errors import AcctError, ArtifactError, ConfigError, UnknownName

TABLES = ("table1", "table2", "table3", "appendix", "all")
SHOWN = {
    "table1": ("table1", "beyond"), "table2": ("table2",), "table3": ("table3",), "all": ("table1", "beyond", "table2", "table3"),
}  # fmt: skip
"""Which tables are printed, where there are records for them."""
WORKER_PROGRESS_SECONDS = 15  # lines of several runs share one terminal


def reproduce(arguments: list[str]) -> None:
    """Run `acct train` and `acct evaluate` for every run of a table, side by side, and write the table.

    Args:
        arguments: the table's name, then overrides; `direction=a,b` restricts the directions, `jobs=n` the processes.
    Raises:
        UnknownName: no such table. ConfigError: a bad override. AcctError: no run finished, or some failed; what is finished is kept.
    """
    from acct.locations import ensure_data
    from acct.reproduce import phase_table, run_jobs

    table = arguments[0] if arguments and "=" not in arguments[0] else ""
    if table not in TABLES:
        raise UnknownName("table", table, TABLES)
    given = dict(argument.split("=", 1) for argument in arguments[1:] if "=" in argument)
    names = given.pop("direction", "")
    jobs = given.pop("jobs", None)
    if jobs is not None and not (jobs.isdecimal() and int(jobs) > 0):
        raise ConfigError(f"jobs must be a whole number of processes, at least 1, got {jobs!r}.")
    overrides = [f"{name}={value}" for name, value in given.items()]
    if table == "appendix":
        _steps([("appendix", lambda: _appendix(overrides, show=True))])
        return
    config = compose(overrides)
    runs = plan(table, overrides, names.split(",") if names else ())  # a wrong name fails before anything runs
    ensure_data(config, [config.data.dataset], [config.data.split, config.data.held_out_split])
    ensure_data(config, config.evaluation.tasks, [config.evaluation.split])
    results = Path(config.paths.results) / config.scale
    noun = "runs" if experiments_of(table, config.scale) else "directions"
    print(f"{table}: {len(runs)} {noun}, stages {', '.join(STAGES)}, then evaluation; everything goes to {results}", flush=True)
    if noun == "runs":
        print(_announced(config, [run.name for run in runs]), flush=True)
    started = time.monotonic()
    shown = overrides if "runtime.progress_seconds" in given else [*overrides, f"runtime.progress_seconds={WORKER_PROGRESS_SECONDS}"]
    limit = int(jobs) if jobs is not None else config.reproduce.jobs or (1 if uses_accelerator(config) else None)
    outcomes = run_jobs(runs, shown, results, limit, noun)
    problems = [f"{outcome.name}: {outcome.failed}" for outcome in outcomes if outcome.failed]
    problems += _show_tables(config, SHOWN[table])
    print("\n" + phase_table([run.name for run in runs], results))
    if table == "all":
        problems += _steps(_afterwards(overrides))
    print(f"{len(runs)} {noun} in {time.monotonic() - started:.0f} s")
    if problems:
        what = "the table is" if table != "all" else "the results are"
        raise AcctError(f"{what} incomplete; run the same command again, it keeps what is finished. Failed: " + "; ".join(problems))


def uses_accelerator(config: Config) -> bool:
    """Whether any part runs elsewhere than on the CPU: runs then go one after the other unless jobs says otherwise."""
    runtime = config.runtime
    return {runtime.source_device, runtime.interface_device, runtime.target_device} != {"cpu"}


def _announced(config: Config, names: Sequence[str]) -> str:
    """The runs, and on what those of Tables 2 and 3 are scored."""
    lines = [f"runs: {', '.join(names)}"]
    tasks = variant_tasks(config)
    if tasks != list(config.evaluation.tasks):
        lines.append(f"runs that Table 1 does not share are scored on {', '.join(tasks)} (reproduce.variant_tasks)")
    if config.scale != "tiny":
        lines.append(f"at any time, also while this runs: acct tables scale={config.scale} shows what is there")
    return "\n".join(lines)


def _show_tables(config: Config, names: Sequence[str]) -> list[str]:
    """Render the tables of the scale and print some of them; what could not be, in words."""
    from acct.cli.evaluation import tables_of_scale

    try:
        lines = tables_of_scale(config)
    except ArtifactError as error:
        if config.scale == "tiny":  # random models stay out of tables, so that there is nothing to show
            print(f"\nno table: {error}")
            return []
        return [f"tables: {error}"]
    for name in names:
        place = Path(config.paths.tables) / f"{name}.md"
        if place.is_file():
            print("\n" + place.read_text(encoding="utf-8"))
    print("\n".join(lines))
    return []


def _appendix(overrides: Sequence[str], show: bool) -> list[str]:
    from acct.cli.appendix import appendix

    lines = appendix(list(overrides))
    return lines if show else [line for line in lines if line.startswith("wrote ")]


def _afterwards(overrides: Sequence[str]) -> list[tuple[str, Callable[[], list[str]]]]:
    """What `all` makes from finished runs: appendix, figures, claims, report, in this order."""
    from acct.cli.figures import figures
    from acct.cli.ledger import claims_of_scale, report_of_scale

    return [
        ("appendix", lambda: _appendix(overrides, show=False)),
        ("figures", lambda: figures([*overrides, "diagnosis.missing=true"])),
        ("claims", lambda: claims_of_scale(compose(list(overrides)))),
        ("report", lambda: report_of_scale(compose(list(overrides)))),
    ]


def _steps(steps: Sequence[tuple[str, Callable[[], list[str]]]]) -> list[str]:
    """Run steps one after the other, each printed with its seconds; one that fails is named and does not stop the others.

    Raises:
        AcctError: the only step failed.
    """
    problems = []
    for name, step in steps:
        started = time.monotonic()
        try:
            lines = step()
        except AcctError as error:
            if len(steps) == 1:
                raise
            problems.append(f"{name}: {error}")
            lines = [f"not made: {error}"]
        print("\n".join(lines))
        print(f"{name}: {time.monotonic() - started:.0f} s\n", flush=True)
    return problems
