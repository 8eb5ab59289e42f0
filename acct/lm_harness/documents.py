"""Documents and scores of the package's own lm-eval tasks: the six contextual ones, as YAML files in `tasks/` (spec 8).

Documents are the fixed sample that `acct evaluate` draws from the same settings, in the same order, so that `--limit 20` means the same
twenty examples on both paths. Settings come from the model arguments, or from `--metadata` where another model answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from acct.config.root import Config
from acct.data.examples import Example
from acct.evaluation.metrics import AnswerCleaning, clean_answer, exact_match, token_f1
from acct.evaluation.samples import sample_examples
from acct.lm_harness.settings import configuration, is_setting
from acct.locations import ensure_data
from acct.training.session import data_source, prompt_options, task_fields

SPLIT = "evaluation"


def load(package_task: str, **metadata: Any) -> Any:
    """The documents of a task, as lm-eval's `custom_dataset` wants them: a DatasetDict with the one split "evaluation".

    Args:
        package_task: name in the task registry. metadata: settings among other things; what is no setting is left to its owner.
    """
    from datasets import Dataset, DatasetDict

    config = configuration({name: value for name, value in metadata.items() if is_setting(name)})
    ensure_data(config, [package_task], [config.evaluation.split])
    rows = [document(example, config) for example in sample(package_task, config)]
    return DatasetDict({SPLIT: Dataset.from_list(rows)})


def sample(name: str, config: Config) -> list[Example]:
    """The configured sample of one task, in the manifest's order."""
    evaluation = config.evaluation
    return sample_examples(
        data_source(config), name, split=evaluation.split, count=evaluation.examples, counts=evaluation.examples_by_task,
        seed=evaluation.seed, fields=task_fields(config),
    )[1]  # fmt: skip


def document(example: Example, config: Config) -> dict[str, Any]:
    """An example as a row for lm-eval.

    `text` and `cue` joined by a blank give the base form of the contextual protocol; under a chat template `text` is the user's turn
    and `cue` begins the assistant's.
    """
    options = prompt_options(config)
    query = example.query.strip()
    asked = query.endswith(options.answer_marker)
    return {
        **{name: value for name, value in asdict(example).items() if name != "further"},  # nothing scores these
        "candidates": list(example.candidates),
        "answers": list(example.answers),
        "text": example.context + options.context_separator + query + ("" if asked else "\n"),
        "cue": options.cue if asked else f"{options.answer_marker} {options.cue}",
        "cut_newline": config.evaluation.cut_newline,
        "cut_sentence": config.evaluation.cut_sentence,
    }


def example_of(row: Mapping[str, Any]) -> Example:
    """The example of such a row."""
    fields = {name: row[name] for name in Example.__dataclass_fields__ if name != "further"}
    return Example(**{**fields, "candidates": tuple(row["candidates"]), "answers": tuple(row["answers"])})


def answer_scores(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Token F1 and exact match of a generated answer, cleaned as `acct evaluate` cleans it."""
    text = clean_answer(results[0], AnswerCleaning(doc["cut_newline"], doc["cut_sentence"]))
    return {"f1": token_f1(text, doc["answers"]), "exact_match": exact_match(text, doc["answers"])}
