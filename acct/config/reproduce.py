"""What `acct reproduce` runs beside Table 1."""

from __future__ import annotations

from dataclasses import dataclass, field

from acct.config.data import TASKS
from acct.config.fields import check_choice

CONTEXTUAL = ("search_qa", "trivia_qa", "boolq", "race", "wiki_hop", "pubmed_qa")


@dataclass
class ReproduceConfig:
    """Choices of `acct reproduce table2|table3|all`.

    Attributes:
        variant_tasks: by scale, the tasks on which the runs of Tables 2 and 3 that Table 1 does not share are scored. A scale that is not
            named scores all of evaluation.tasks, as the paper does; micro leaves out the four general tasks by candidate likelihood.
    """

    variant_tasks: dict[str, list[str]] = field(default_factory=lambda: {"micro": [*CONTEXTUAL, "wikitext"]})

    def __post_init__(self) -> None:
        for scale, tasks in self.variant_tasks.items():
            for task in tasks:
                check_choice(f"reproduce.variant_tasks.{scale}", task, TASKS)
