"""Both paths over one sample: this package's own scoring, and lm-eval's evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from acct.config.root import Config
from acct.data.batches import length_sorted_batches
from acct.evaluation.metrics import AnswerCleaning
from acct.evaluation.samples import Sample, load_samples
from acct.evaluation.scoring import ScoringRules, score_batch
from acct.lm_harness import TASKS
from acct.lm_harness.model import AcctLM
from acct.methods.prepared import Prepared
from acct.methods.registry import get_method
from acct.models.pair import Pair
from acct.pipeline import Interface
from acct.training.session import data_source, prompt_options, task_fields


def own_samples(config: Config, pair: Pair, style: str, loader: Any = None) -> dict[str, Sample]:
    """The samples of `config.evaluation.tasks` as `acct evaluate` loads them."""
    evaluation = config.evaluation
    return load_samples(
        data_source(config), evaluation.tasks, pair.tokenizer, count=evaluation.examples, seed=evaluation.seed, style=style,
        options=prompt_options(config), fields=task_fields(config), **({} if loader is None else {"loader": loader}),
    )  # fmt: skip


def own_records(config: Config, pair: Pair, interface: Interface | None, method: str, sample: Sample) -> dict[str, dict[str, Any]]:
    """Records by example id, candidates compared by their summed NLL as lm-eval does."""
    evaluation = config.evaluation
    rules = ScoringRules(evaluation.max_new_tokens, AnswerCleaning(evaluation.cut_newline, evaluation.cut_sentence), "sum")
    rows = []
    with torch.no_grad():
        for batch in length_sorted_batches(sample.examples, 3):
            examples = [sample.examples[index] for index in batch]
            prepared = Prepared(pair, interface, examples, seed=evaluation.seed)  # type: ignore[arg-type]
            rows += score_batch(get_method(method).mount(prepared), sample, examples, pair.tokenizer, rules)
    return {row["example"]: row for row in rows}


def manager(settings: dict[str, Any]) -> TaskManager:
    """The package's tasks alone: indexing lm-eval's own takes ten seconds."""
    return TaskManager(include_path=str(TASKS), include_defaults=False, metadata=settings)


def harness(model: Any, tasks: Sequence[Any], task_manager: TaskManager, **more: Any) -> dict[str, list[dict[str, Any]]]:
    """lm-eval's samples by task, in the documents' order."""
    result = simple_evaluate(
        model=model,
        tasks=list(tasks),
        task_manager=task_manager,
        log_samples=True,
        bootstrap_iters=0,
        batch_size=3,
        verbosity="ERROR",
        **more,
    )
    return {task: sorted(rows, key=lambda row: row["doc_id"]) for task, rows in result["samples"].items()}


def likelihoods(row: dict[str, Any]) -> list[float]:
    """Log-likelihood of each candidate of a sample."""
    return [float(pair[0]) for pair in row["filtered_resps"]]


def lm(pair: Pair, interface: Interface | None, config: Config, method: str, **more: Any) -> AcctLM:
    return AcctLM(pair, interface, config, method, **more)


def data_settings(folder: Path) -> dict[str, Any]:
    """Model arguments of the embedded pair with data of its own folder."""
    return {
        "direction": "micro_qwen3_small_to_large", "paths.data": str(folder), "evaluation.examples": 5, "data.generated": 16,
        "runtime.progress_seconds": 1e9,
    }  # fmt: skip
