"""Which runs each table needs: directions of a scale, and what distinguishes the runs of Tables 2 and 3 (spec 8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from acct.config.budget import BudgetConfig
from acct.config.root import Config, compose, config_folder, variant_suffix
from acct.errors import ConfigError
from acct.reproduce import Job

SIX: dict[str, tuple[str, ...]] = {
    "micro": (
        "micro_qwen3_small_to_large", "micro_qwen3_large_to_small", "micro_llama_small_to_large",
        "micro_llama_large_to_small", "micro_qwen2_small_to_large", "micro_qwen2_large_to_small",
    ),
    "paper": ("qwen3_4b_to_8b", "qwen3_8b_to_4b", "llama_3b_to_8b", "llama_8b_to_3b", "qwen25_7b_to_32b", "qwen25_32b_to_7b"),
    "tiny": ("tiny_qwen3", "tiny_llama", "tiny_qwen2"),
    "real-small": ("qwen25_coder_05b_to_15b", "qwen25_coder_15b_to_05b"),
}  # fmt: skip
PAIR: dict[str, tuple[str, ...]] = {
    "micro": ("micro_qwen3_small_to_large", "micro_qwen3_large_to_small"),
    "paper": ("qwen3_4b_to_8b", "qwen3_8b_to_4b"),
    "tiny": ("tiny_qwen3",),
    "real-small": ("qwen25_coder_05b_to_15b", "qwen25_coder_15b_to_05b"),
}
"""Tables 2 and 3: both directions of one pair."""
TIMED: dict[str, tuple[str, ...]] = {"cpu": ("qwen3_06b_to_17b",)}
"""Directions that are only timed, by scale: no table of scores has them, and a sweep over all directions leaves them out."""
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "table1": (), "table2": ("table2_1x", "table2_2x"), "table3": ("table3_random", "table3_uniform"),
    "all": ("table2_1x", "table2_2x", "table3_random", "table3_uniform"),
}  # fmt: skip
"""Files of conf/experiment that a table needs beside the run without a variant, the longest first."""
ALSO: dict[tuple[str, str], tuple[str, ...]] = {("table1", "real-small"): ("acct_plus", "acct_plus_1x", "acct_plus_2x", "modules_2x")}
"""The same for a table at one scale: a real pair is shown with what goes beyond the paper, and at other budgets with the modules of 4x."""
INSTEAD = {"modules_2x": "table2_2x"}
"""What stands in a run folder where nothing is trained for it."""
OURS = ("experiment", "budget.retention", "paths.run", "paths.variant", "paths.reuse", "paths.modules")
"""What tables 2 and 3 set themselves."""


def directions_of(scale: str) -> list[str]:
    """Every direction whose models are of a scale's kind: embedded ones, random ones, the hub's, or those that are only timed."""
    own = {name: scale for scale, names in (*TIMED.items(), ("real-small", SIX["real-small"])) for name in names}
    names = sorted(path.stem for path in (config_folder() / "direction").glob("*.yaml"))
    kinds = ("micro", "tiny")
    return [name for name in names if own.get(name, name.partition("_")[0] if name.startswith(kinds) else "paper") == scale]


def experiments_of(table: str, scale: str) -> tuple[str, ...]:
    """Files of conf/experiment whose runs a table has at a scale, beside those without a variant."""
    also = [one for one in ALSO.get(("table1" if table == "all" else table, scale), ()) if INSTEAD.get(one) not in EXPERIMENTS[table]]
    return (*also, *(name for name in EXPERIMENTS[table] if name not in also))


def default_directions(table: str, scale: str) -> dict[str, tuple[str, ...]]:
    """Directions of a table: those of runs without a variant, and those that its experiments are run on.

    `all` also runs the additional pairs of Appendix I where the scale has any.
    """
    if scale not in PAIR:
        raise ConfigError(f"scale={scale} has no {table}. There are: {', '.join(PAIR)}. Latency alone is timed there: acct latency.")
    pair = PAIR[scale]
    base = pair if table in ("table2", "table3") else SIX[scale]
    if table == "all":
        from appendix_tables.inputs import ADDITIONAL

        base = (*base, *ADDITIONAL.get(scale, ()))
    return {"base": base, "variants": pair if experiments_of(table, scale) else ()}


def variant_tasks(config: Config) -> list[str]:
    """Tasks of the runs that Table 1 does not share: those of the scale that `evaluation.tasks` holds too, or all of these."""
    chosen = config.reproduce.variant_tasks.get(config.scale, config.evaluation.tasks)
    return [task for task in config.evaluation.tasks if task in chosen] or list(config.evaluation.tasks)


def run_names(table: str, scale: str, seeds: Sequence[int] = (0,)) -> list[str]:
    """Folders of the runs of a table under the scale's own settings, in the order of `plan`; composes nothing."""
    chosen = default_directions(table, scale)
    names = [f"{direction}{variant_suffix(0.25, '', seed)}" for seed in seeds for direction in chosen["base"]]
    for experiment in experiments_of(table, scale):
        settings = yaml.safe_load((config_folder() / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8"))
        retention = settings.get("budget", {}).get("retention", BudgetConfig().retention)
        suffixes = [variant_suffix(retention, settings.get("paths", {}).get("variant", ""), seed) for seed in seeds]
        names += [f"{direction}{suffix}" for suffix in suffixes for direction in chosen["variants"]]
    return names


def plan(table: str, overrides: Sequence[str], directions: Sequence[str] = ()) -> list[Job]:
    """The runs of a table, those without a variant first: Uniform copies their Cartographers.

    Args:
        overrides: of the call, without direction. directions: instead of the scale's own, for runs with and without a variant.
    Raises:
        ConfigError: a bad override, one that the table sets itself, or two runs of one folder.
    """
    given = {override.partition("=")[0] for override in overrides}
    config = compose(list(overrides))
    experiments = experiments_of(table, config.scale)
    if experiments and (clash := [name for name in OURS if name in given]):
        raise ConfigError(f"{table} sets {clash[0]} itself, for each of its runs. Leave it out, or use acct train -m.")
    if config.reproduce.seeds and "runtime.seed" in given:
        raise ConfigError("runtime.seed and reproduce.seeds both name training seeds. Leave one of them out.")
    chosen = default_directions(table, config.scale)
    tasks = variant_tasks(config)
    fewer = (f"evaluation.tasks=[{','.join(tasks)}]",) if tasks != list(config.evaluation.tasks) else ()
    jobs: dict[str, Job] = {}

    def add(direction: str, *further: str) -> str:
        special = (one for one in config.reproduce.by_direction.get(direction, ()) if one.partition("=")[0] not in given)
        own = (f"direction={direction}", *further, *special)
        paths = compose([*overrides, *own]).paths
        name = Path(paths.run).name
        if name in jobs:
            raise ConfigError(f"two runs would share the folder {paths.run}. Leave out what sets it (paths.run, paths.variant).")
        jobs[name] = Job(name, own, tuple(dict.fromkeys(Path(path).name for path in (paths.reuse, paths.modules) if path)))
        return name

    seeds = [(f"runtime.seed={seed}",) for seed in config.reproduce.seeds] or [()]
    for seed in seeds:
        for direction in directions or chosen["base"]:
            add(direction, *seed)
    for experiment in experiments:
        for seed in seeds:
            for direction in directions or chosen["variants"]:
                add(direction, f"experiment={experiment}", *seed, *fewer)
    return list(jobs.values())
