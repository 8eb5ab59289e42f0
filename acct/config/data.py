"""Which data set trains, and what evaluation measures (spec 5, 8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from acct.config.fields import check_range, silent

TASKS = (
    "search_qa", "trivia_qa", "boolq", "race", "wiki_hop", "pubmed_qa",
    "hellaswag", "winogrande", "mmlu", "piqa", "wikitext",
)  # fmt: skip
METHODS = (
    "target_full", "acct", "source_full", "no_context", "native_kv", "random", "bridge_only", "zeros", "noise", "wrong_document",
)  # fmt: skip


@dataclass
class DataConfig:
    """Training examples.

    Attributes:
        dataset, split: the data set that supplies them, under paths.data.
        context_tokens: longest context; longer ones are cut at the end (the start of the passage is kept). null keeps all.
        seed: draws the manifest; the first examples of a larger one are a smaller one.
    """

    dataset: str = "search_qa"
    split: str = "train"
    context_tokens: int | None = None
    seed: int = silent(0, "draws the fixed manifest of examples", "8")


@dataclass
class EvaluationConfig:
    """The harness (spec 8).

    Attributes:
        tasks, methods: rows and columns of Table 1. examples: of every task; examples_by_task overrides single ones.
        max_new_tokens: longest generated answer. split: which part of each data set is scored.
        resamples, confidence: paired bootstrap over examples. check_tokens, check_tolerance: the interface check.
    """

    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    methods: list[str] = field(default_factory=lambda: list(METHODS))
    split: str = "test"
    examples: int = 1000
    examples_by_task: dict[str, int] = field(default_factory=dict)
    batch: int = silent(16, "changes speed only", "8")
    max_new_tokens: int = silent(32, "longest answer that is generated", "8")
    general_context: str = silent("prompt", "tasks without a passage: the prompt up to the scored part is the context", "8")
    resamples: int = silent(2000, "bootstrap resamples", "8")
    confidence: float = 0.95
    seed: int = silent(0, "manifest, bootstrap, random selections and noise", "8")
    check_tokens: int = 4
    check_tolerance: float = 0.05
    control_margin: float = silent(0.1, "a control this close to the method, as a fraction of it, marks the run invalid", "8")

    def __post_init__(self) -> None:
        check_range("evaluation.examples", self.examples, 1, float("inf"))
        check_range("evaluation.batch", self.batch, 1, float("inf"))
        check_range("evaluation.max_new_tokens", self.max_new_tokens, 1, float("inf"))
        check_range("evaluation.resamples", self.resamples, 1, float("inf"))
        check_range("evaluation.confidence", self.confidence, 0, 0.9999, open_low=True)
