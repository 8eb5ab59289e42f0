"""Which data set trains, and what evaluation measures (spec 5, 8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from acct.config.compressors import CompressorsConfig
from acct.config.fields import check_choice, check_range, silent
from acct.data.hub import HubEntry, default_hub
from acct.errors import ConfigError, UnknownName

TASKS = (
    "search_qa", "trivia_qa", "boolq", "race", "wiki_hop", "pubmed_qa",
    "hellaswag", "winogrande", "mmlu", "piqa", "wikitext",
)  # fmt: skip
FURTHER_TASKS = ("factbook_qa", "squad", "hotpot_qa", "musique", "musique_steps", "text_cloze")
"""Real text for real pairs; measured where evaluation.tasks names them."""
METHODS = (
    "target_full", "acct", "source_full", "no_context", "native_kv", "random", "bridge_only", "zeros", "noise", "wrong_document",
)  # fmt: skip


def check_task(field_name: str, name: str) -> None:
    """Refuse a name that no task has, and suggest the nearest one."""
    if name not in (known := (*TASKS, *FURTHER_TASKS)):
        raise UnknownName(f"task of {field_name}", name, known)


@dataclass
class DataConfig:
    """Training examples.

    Attributes:
        also: beyond the paper: further data sets, each with its share of the training examples, evenly spread among those of `dataset`.
        dataset, split: the data set that supplies them. held_out_split: what is only measured while training.
        source: "folder" reads paths.data, "hub" the model hub's data sets (extra `data`).
        hub: name, configuration, evaluation split and revision of each task's data set on the hub.
        folders: sub-folder of paths.data of each task.
        evaluation_split: what is scored of a task's folder; "hub" takes the split that is scored on the hub.
        tasks_from: "package" reads rows by the package's own tasks; "lm_eval" (extra `eval`) asks lm-eval's tasks for the five general
            sets, and the package's lm-eval YAML files for the six contextual ones.
        factbook: folder below paths.data with the Factbook's fields, from which missing questions of the task factbook_qa are made.
        generated: rows of a generated training split (scale=micro, tiny), so that a stage's size does not change the manifest.
        seed: draws the manifest; the first examples of a larger one are a smaller one.
    """

    dataset: str = "search_qa"
    also: dict[str, float] = field(default_factory=dict)
    split: str = "train"
    held_out_split: str = "validation"
    source: str = "folder"
    hub: dict[str, HubEntry] = field(default_factory=default_hub)
    folders: dict[str, str] = field(default_factory=lambda: {task: task for task in (*TASKS, *FURTHER_TASKS)})
    evaluation_split: str = "test"
    tasks_from: str = silent("package", "the text names no harness; lm_eval takes that one's prompts", "8")
    factbook: str = "corpora/factbook"
    generated: int = 2048
    seed: int = silent(0, "draws the fixed manifest of examples", "8")

    def __post_init__(self) -> None:
        check_task("data.dataset", self.dataset)
        check_choice("data.source", self.source, ("folder", "hub"))
        check_choice("data.tasks_from", self.tasks_from, ("package", "lm_eval"))
        for name in (*self.hub, *self.folders):
            check_task("data.hub or data.folders", name)
        for name, share in self.also.items():
            check_task("data.also", name)
            check_range(f"data.also.{name}", share, 0, 1, open_low=True)
            if name == self.dataset:
                raise ConfigError(f"data.also names {name}, which is data.dataset already. Raise a stage's examples instead.")
        if (whole := sum(self.also.values())) >= 1:
            raise ConfigError(f"data.also gives {whole:g} of the training examples to other sets than {self.dataset}. Leave it a share.")


@dataclass
class PromptsConfig:
    """What shapes a prompt beside the example and the tokenizer; the same for the method and for Target Full (spec 7).

    Attributes:
        cue: begins the answer of contextual tasks. system: a system message for chat templates, null for the template's own.
        query_tokens: tokens at the end of a general task's prompt that the target reads itself.
        max_context_tokens: longest context, null for no limit; truncation_keeps: the end that stays, "head" or "tail".
        date: the day that a template which prints today's date shows.
    """

    cue: str = "The answer is"
    system: str | None = silent(None, "the template's own default", "7")
    query_tokens: int = silent(1, "the least that leaves the rest of the prompt to the context", "8")
    max_context_tokens: int | None = silent(None, "no truncation; a limit is recorded for each example", "8")
    truncation_keeps: str = silent("head", "passages state their topic first", "8")
    date: str = silent("2024-07-26", "prompts do not change from day to day", "7")

    def __post_init__(self) -> None:
        check_choice("prompts.truncation_keeps", self.truncation_keeps, ("head", "tail"))
        check_range("prompts.query_tokens", self.query_tokens, 1, float("inf"))
        check_range("prompts.max_context_tokens", self.max_context_tokens, 1, float("inf"))


@dataclass
class EvaluationConfig:
    """The harness (spec 8).

    Attributes:
        tasks, methods: rows and columns of Table 1. examples: of every task; examples_by_task overrides single ones.
        max_new_tokens: longest generated answer. restart: throw away records of another configuration instead of refusing.
        figures: `acct tables` also draws charts (extra `report`). split: what is scored; "evaluation" is the
            source's own choice (data.evaluation_split in a folder).
        manifest: file of the fixed sample's ids and content hashes, shared by all directions; null for one in the scale's results.
        compressors: settings of the same-model compressors, which methods must name.
        resamples, confidence: paired bootstrap over examples. check_tokens, check_tolerance: the interface check.
    """

    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    methods: list[str] = field(default_factory=lambda: list(METHODS))
    compressors: CompressorsConfig = field(default_factory=CompressorsConfig)
    split: str = "evaluation"
    examples: int = 1000
    examples_by_task: dict[str, int] = field(default_factory=dict)
    batch: int = silent(16, "changes speed only", "8")
    max_new_tokens: int = silent(32, "longest answer that is generated", "8")
    reduction: str = silent("mean", "candidates are compared by mean token NLL, so that long ones are not punished", "8")
    cut_newline: bool = silent(True, "an answer ends at the first line break: a base model goes on with a next question", "8")
    cut_sentence: bool = silent(True, "an answer ends with its sentence, which the cue begins", "8")
    trivia_qa_passages: str = silent("first", "search results, and entity pages where there are none", "8")
    wikitext_window_tokens: int = silent(256, "the test split of WikiText-2 gives 500 windows with room to spare", "8")
    wikitext_context_tokens: int = silent(192, "three quarters of a window are read, one quarter is scored", "8")
    wikitext_separate_articles: bool = silent(True, "no window mixes two articles", "8")
    search_qa_titles: bool = silent(False, "snippets alone are what the hub's schema calls the text", "8")
    manifest: str | None = None
    restart: bool = False
    figures: bool = False
    resamples: int = silent(10_000, "bootstrap resamples", "8")
    confidence: float = 0.95
    seed: int = silent(0, "manifest, bootstrap, random selections and noise", "8")
    check_examples: int = 4
    check_tokens: int = 4
    check_tolerance: float = 0.05
    control_margin: float = silent(0.1, "a control this close to the method, as a fraction of it, marks the run invalid", "8")

    def __post_init__(self) -> None:
        for name in (*self.tasks, *self.examples_by_task):
            check_task("evaluation.tasks or evaluation.examples_by_task", name)
        check_range("evaluation.examples", self.examples, 1, float("inf"))
        check_choice("evaluation.reduction", self.reduction, ("mean", "sum"))
        check_choice("evaluation.trivia_qa_passages", self.trivia_qa_passages, ("first", "search", "entity", "both"))
        check_range("evaluation.batch", self.batch, 1, float("inf"))
        check_range("evaluation.max_new_tokens", self.max_new_tokens, 1, float("inf"))
        check_range("evaluation.resamples", self.resamples, 1, float("inf"))
        check_range("evaluation.confidence", self.confidence, 0, 0.9999, open_low=True)
