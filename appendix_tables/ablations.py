"""Settings of the ablations (paper J, Table 3): what each row replaces, what is trained again, and how many examples were scored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from acct.config.root import Config, as_dict, config_folder
from acct.config.training import STAGES
from acct.reporting.names import METHODS, label
from acct.reporting.records import load_records, settings
from acct.reporting.tables import Block, Table, Text
from acct.training.modules import uses_allocator, uses_cartographer
from appendix_tables.data_sets import examples
from appendix_tables.inputs import Inputs
from appendix_tables.stated import ABLATION_EXAMPLES, compared

COLUMNS = ("ranking", "capacities", "states at the positions", "trained again", "examples x epochs", "scored (records)")
PREFIX = "table3_"
UNTRAINED = {"bridge_only": "Bridge alone", "native_kv": "target's own"}
"""Rows that change what is mounted and train nothing."""


@dataclass(frozen=True)
class Setting:
    """One row: its label, the configuration, what is mounted, where its records are (method, variant), and the stages trained again."""

    name: str
    config: Config
    states: str
    method: str
    variant: str
    again: tuple[str, ...]


def experiments() -> list[str]:
    """Names of the ablations that have an experiment of their own."""
    return sorted(path.stem for path in (config_folder() / "experiment").glob(f"{PREFIX}*.yaml"))


def trained(config: Config) -> tuple[str, ...]:
    """Stages that a configuration trains."""
    used = {"cartographer": uses_cartographer(config), "allocator": uses_allocator(config), "compiler": True}
    return tuple(stage for stage in STAGES if used[stage])


def trained_again(config: Config, base: Config) -> tuple[str, ...]:
    """Stages of an ablation that are not copied from the base run: a copy needs `paths.reuse` and equal settings up to that stage."""
    stages = trained(config)
    if not config.paths.reuse:
        return stages
    copied = 0
    while copied < len(stages) and as_dict(getattr(config, stages[copied])) == as_dict(getattr(base, stages[copied])):
        if STAGES[copied] != stages[copied]:  # an earlier stage is left out: what follows is built on other inputs
            break
        copied += 1
    return stages[copied:]


def rows_of(inputs: Inputs) -> list[Setting]:
    """ACCT, the retrained ablations, then those that retrain nothing."""
    base = inputs.config
    found = [Setting(label("acct", METHODS), base, "compiled", "acct", "", trained(base))]
    for name in experiments():
        config = inputs.composed(f"experiment={name}")
        shown = f"{name.removeprefix(PREFIX).capitalize()}, retrained"
        found.append(Setting(shown, config, "compiled", "acct", config.paths.variant, trained_again(config, base)))
    return found + [Setting(label(name, METHODS), base, states, name, "", ()) for name, states in UNTRAINED.items()]


def scored(inputs: Inputs, setting: Setting) -> int:
    """Examples with a record, all directions and tasks together; 0 where nothing was evaluated."""
    config = inputs.config
    root, retention = Path(config.paths.results), config.budget.retention
    if (setting.variant, retention) not in settings(root, config.scale):
        return 0
    return len(load_records(root, config.scale, setting.variant, retention).only(method=setting.method))


def table(inputs: Inputs) -> Table:
    """One row for each setting."""
    config, found = inputs.config, rows_of(inputs)
    counted = [scored(inputs, setting) for setting in found]
    rows = []
    for setting, count in zip(found, counted):
        training = setting.config.training
        amounts = [f"{stage} {getattr(training, stage).examples:,} x {getattr(training, stage).epochs}" for stage in setting.again]
        words = (
            setting.config.cartographer.ranking, setting.config.allocator.capacities, setting.states, ", ".join(setting.again) or "nothing",
            "; ".join(amounts), f"{count:,}" if count else "",
        )  # fmt: skip
        rows.append((setting.name, tuple(map(Text, words))))
    notes = [
        f"All at retention {config.budget.retention:g} with a tail of {config.budget.tail_tokens}; seeds, schedules and data are ACCT's. "
        "The Cartographer of Uniform is copied from the run without a variant.",
        "The row Random of Table 1, which trains nothing and mounts exact states at random positions, is another one.",
        f"Scored: records at scale={config.scale}, all directions and tasks of a row together; a dash was not run.",
    ]
    planned = (len(found) - 1) * 2 * sum(examples(inputs).values())
    text = f"{len(found) - 1} rows x 2 directions x the configured examples"
    notes += ["", compared(text, f"{planned:,}", f"{ABLATION_EXAMPLES:,}") if config.scale == "paper" else f"{text} = {planned:,}."]
    read = {"settings": [(setting.name, as_dict(setting.config), setting.again) for setting in found], "scored": counted}
    line = inputs.provenance(read, f"configurations and records of scale={config.scale}")
    caption = f"Settings of the component ablations (scale={config.scale})."
    return Table("ablations", caption, (Block("Rows of Table 3", COLUMNS, tuple(rows)),), (), tuple(notes), line)
