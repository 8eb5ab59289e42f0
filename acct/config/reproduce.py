"""What `acct reproduce` runs beside Table 1."""

from __future__ import annotations

from dataclasses import dataclass, field

from acct.config.data import TASKS
from acct.config.fields import check_choice, check_range
from acct.errors import ConfigError

CONTEXTUAL = ("search_qa", "trivia_qa", "boolq", "race", "wiki_hop", "pubmed_qa")


@dataclass
class ReproduceConfig:
    """Choices of `acct reproduce`.

    Attributes:
        jobs: runs side by side (`jobs=n` on the command line goes before it); null: as many as there are cores, one on GPUs.
        seeds: training seeds; every run of a table is trained and evaluated with each of them. Empty: runtime.seed alone.
        variant_tasks: by scale, the tasks on which the runs of Tables 2 and 3 that Table 1 does not share are scored. A scale that is not
            named scores all of evaluation.tasks, as the paper does; micro leaves out the four general tasks by candidate likelihood.
        by_direction: further overrides of one direction's runs, by its name; what the call gives itself goes before them.
    """

    jobs: int | None = None
    seeds: list[int] = field(default_factory=list)
    variant_tasks: dict[str, list[str]] = field(default_factory=lambda: {"micro": [*CONTEXTUAL, "wikitext"]})
    by_direction: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_range("reproduce.jobs", self.jobs, 1, float("inf"))
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds, default=0) < 0:
            raise ConfigError(f"reproduce.seeds must be whole numbers from 0, none twice, got {list(self.seeds)}.")
        for scale, tasks in self.variant_tasks.items():
            for task in tasks:
                check_choice(f"reproduce.variant_tasks.{scale}", task, TASKS)
        for direction, overrides in self.by_direction.items():
            if wrong := [one for one in overrides if "=" not in one]:
                raise ConfigError(f"reproduce.by_direction.{direction} must list overrides (name=value), got {wrong[0]!r}.")
