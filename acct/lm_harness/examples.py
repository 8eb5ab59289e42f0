"""From the documents of lm-eval's tasks to this package's examples (`data.tasks_from=lm_eval`, spec 8).

The five general sets are read through lm-eval's own task definitions: its prompt text is the context, its choices are the candidates.
Rows come from the configured source in the hub's field names, so that ids, and with them the sample drawn from a seed, are those of
the package's own tasks. The six contextual sets come from the package's lm-eval tasks (`acct.lm_harness.documents`).

Deviations from lm-eval, all of them in what surrounds its text: prompts are tokenised apart from candidates; the 57 MMLU tasks are one,
with each row's subject in the description; WinoGrande's shared opening is the context and only the text after the option is scored;
WikiText pages are cut into the package's windows, and only the part after a window's context is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from acct.config.root import Config
from acct.data.examples import Example
from acct.data.source import DataSource, unique
from acct.data.tasks.base import Task
from acct.data.tasks.wikitext import WikiText
from acct.errors import ConfigError, DataError
from acct.evaluation.samples import Loader
from acct.lm_harness import TASKS
from acct.lm_harness.documents import SPLIT, document, example_of

# lm-eval's folder and name of each general task. MMLU's subjects differ in the description only.
GENERAL = {
    "hellaswag": ("hellaswag", "hellaswag"),
    "winogrande": ("winogrande", "winogrande"),
    "mmlu": ("mmlu/default", "mmlu_abstract_algebra"),
    "piqa": ("piqa", "piqa"),
    "wikitext": ("wikitext", "wikitext"),
}
MMLU_DESCRIPTION = "The following are multiple choice questions (with answers) about {{subject|replace('_', ' ')}}.\n\n"


def lm_eval_loader(config: Config) -> Loader:
    """A loader of examples for `load_samples` that goes through lm-eval's tasks.

    Raises:
        ConfigError: lm-eval is not installed.
    """
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise ConfigError("data.tasks_from=lm_eval needs the package lm-eval: pip install 'acct[eval]'.") from error

    def load(source: DataSource, task: Task, split: str) -> list[Example]:
        rows = source.rows(task.name, split)
        try:
            examples = general(task, rows) if task.name in GENERAL else contextual(task, rows, config)
            unique(examples)
        except DataError as error:
            raise DataError(f"{source.where(task.name, split)}: {error}") from error
        if not examples:
            raise DataError(f"{source.where(task.name, split)}: {len(rows)} rows give no example of {task.name}.")
        return examples

    return load


def contextual(task: Task, rows: Sequence[Mapping[str, Any]], config: Config) -> list[Example]:
    """Examples of one of the package's own lm-eval tasks."""
    documents = [document(example, config) for example in task.examples(rows)]
    built = build(TASKS, f"acct_{task.name}", documents)
    return [example_of(doc) for doc in built.eval_docs]


def general(task: Task, rows: Sequence[Mapping[str, Any]]) -> list[Example]:
    """Examples of one of the five general sets, as lm-eval words them.

    Raises:
        DataError: a document whose prompt, choices or label cannot be an example; its number is named.
    """
    import lm_eval.tasks

    folder, name = GENERAL[task.name]
    extra: dict[str, Any] = {"description": MMLU_DESCRIPTION} if task.name == "mmlu" else {}
    if isinstance(task, WikiText):
        rows = [{"page": page} for page in task.documents(rows)]
    built = build(Path(lm_eval.tasks.__file__).parent / folder, name, rows, **extra)
    docs = list(built.eval_docs)
    if isinstance(task, WikiText):
        windows = [window for doc in docs for window in task.examples([{"text": built.doc_to_target(doc)}])]
        return [replace(window, id=f"{task.name}/{number:05d}") for number, window in enumerate(windows)]
    return [choice(task, built, doc, f"{task.name}/{number:05d}") for number, doc in enumerate(docs)]


def choice(task: Task, built: Any, doc: Mapping[str, Any], name: str) -> Example:
    """One document of a multiple_choice task.

    Args:
        built: lm-eval's task. name: id of the example.
    """
    delimiter = built.config.target_delimiter
    if delimiter != " ":
        raise DataError(f"{name}: lm-eval's target_delimiter must be a blank, got {delimiter!r}: candidates follow one in this package.")
    prompt = built.fewshot_context(doc, 0)
    suffix = None
    if isinstance(prompt, list):  # one prompt for each option, and one continuation that is scored
        gold, suffix = built.doc_to_text(doc), delimiter + built.doc_to_target(doc)
        length = next((place for place, letters in enumerate(zip(*prompt)) if len(set(letters)) > 1), min(map(len, prompt)))
        shared = prompt[0][: prompt[0].rfind(" ", 0, length) + 1]  # whole words
        context, candidates = shared.rstrip(), tuple(option[len(shared) :].strip() for option in prompt)
    else:
        gold, context, candidates = built.doc_to_target(doc), prompt, tuple(option.strip() for option in built.doc_to_choice(doc))
    if not context.strip() or not all(candidates) or not isinstance(gold, int) or not 0 <= gold < len(candidates):
        raise DataError(
            f"{name}: expected a prompt, candidates that are not empty and a label among them, got {context[:40]!r}, {candidates} and "
            f"{gold!r}. Mend or remove the row."
        )
    return Example(
        id=name, task=task.name, kind="choice", context=context, query="", answers=(candidates[gold],), candidates=candidates, gold=gold,
        scored_suffix=suffix, contextual=task.contextual,
    )  # fmt: skip


def build(folder: Path, name: str, rows: Sequence[Mapping[str, Any]], **overrides: Any) -> Any:
    """An lm-eval task of a YAML folder over rows in memory: no download, no index of all tasks.

    Args:
        folder: holds the YAML file and what it includes. overrides: further fields of the task.
    Raises:
        DataError: lm-eval's definition does not accept the rows.
    """
    from datasets import Dataset, DatasetDict
    from lm_eval.tasks import TaskManager

    loaded: Callable[..., Any] = lambda **_: DatasetDict({SPLIT: Dataset.from_list([dict(row) for row in rows])})  # noqa: E731
    here = {"task": name, "custom_dataset": loaded, "test_split": SPLIT, "training_split": None, "validation_split": None}
    members = [{**here, "fewshot_split": None, "fewshot_config": None, **overrides}]
    try:
        tasks = TaskManager(include_path=str(folder), include_defaults=False).load([{"group": "acct", "task": members}])["tasks"]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"lm-eval's task {name} does not accept these rows: {type(error).__name__}: {error}.") from error
    (task,) = tasks.values()
    return task
