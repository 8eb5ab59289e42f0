"""From a configuration to the arguments of evaluation and tables; no arithmetic."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from acct.config.root import Config, as_dict
from acct.cpu import kept_memory, prepare_cpu
from acct.data.manifest import ManifestFile
from acct.data.source import load_examples
from acct.evaluation.metrics import AnswerCleaning
from acct.evaluation.report import EvaluationReport
from acct.evaluation.run import EvaluationOptions, run_evaluation
from acct.evaluation.samples import Loader, load_samples
from acct.evaluation.scoring import ScoringRules
from acct.locations import ensure_data
from acct.methods.registry import get_method, query_aware
from acct.provenance import write_config
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import FOLDER, TRAINING_SEED
from acct.reporting.write import write_tables
from acct.training.modules import load_interface
from acct.training.ridge import with_ridge
from acct.training.session import check_windows, data_source, load_configured_pair, prompt_options, style_of, task_fields


def bootstrap_of(config: Config) -> Bootstrap:
    """How intervals are drawn."""
    evaluation = config.evaluation
    return Bootstrap(evaluation.resamples, evaluation.confidence, evaluation.seed)


def options_of(config: Config) -> EvaluationOptions:
    """The harness's options."""
    evaluation = config.evaluation
    return EvaluationOptions(
        methods=query_aware(evaluation.methods) if evaluation.compressors.query_aware else tuple(evaluation.methods),
        compressors=evaluation.compressors,
        batch=evaluation.batch,
        seed=evaluation.seed,
        scoring=ScoringRules(
            evaluation.max_new_tokens, AnswerCleaning(evaluation.cut_newline, evaluation.cut_sentence), evaluation.reduction
        ),
        check_examples=evaluation.check_examples,
        check_tokens=evaluation.check_tokens,
        check_tolerance=evaluation.check_tolerance,
        bootstrap=bootstrap_of(config),
        control_margin=evaluation.control_margin,
        shortened=config.scale == "tiny",
    )


def example_loader(config: Config) -> Loader:
    """Where the examples of a split come from: the package's tasks, or lm-eval's."""
    if config.data.tasks_from == "package":
        return load_examples
    from acct.lm_harness.examples import lm_eval_loader

    return lm_eval_loader(config)


def manifest_file(config: Config) -> ManifestFile:
    """The manifest that every direction of the scale holds to; lm-eval's tasks word their examples otherwise and have one of their own."""
    evaluation, data = config.evaluation, config.data
    suffix = "" if data.tasks_from == "package" else f"-{data.tasks_from}"
    path = Path(evaluation.manifest or Path(config.paths.results) / config.scale / f"manifest{suffix}.json")
    source, fields, settings = data_source(config), task_fields(config), {}
    splits = {name: source.split(name, evaluation.split) for name in evaluation.tasks}
    for name in evaluation.tasks:
        origin = {f"data.hub.{name}.{key}": value for key, value in asdict(data.hub[name]).items()} if data.source == "hub" else {}
        settings[name] = {"data.tasks_from": data.tasks_from, "data.source": data.source, **origin, **fields.get(name, {})}
    return ManifestFile(path, evaluation.seed, splits, settings, evaluation.restart)


def evaluate_direction(config: Config) -> EvaluationReport:
    """Score the run folder's interface, and the rows beside it, on every configured task.

    Raises:
        ArtifactError: a stage has not finished; the Compiler is asked for only where a row reads it.
        InterfaceError: the interface check fails; nothing is scored then.
    """
    evaluation = config.evaluation
    prepare_cpu(config.runtime)
    ensure_data(config, evaluation.tasks, [evaluation.split])
    pair = load_configured_pair(config)
    options = options_of(config)
    compiles = any(get_method(name).compiles for name in options.methods)
    interface = with_ridge(load_interface(config, pair, compiles=compiles), config, pair, evaluation.methods)
    samples = load_samples(
        data_source(config), evaluation.tasks, pair.tokenizer, split=evaluation.split, count=evaluation.examples,
        counts=evaluation.examples_by_task, seed=evaluation.seed, style=style_of(config, pair.tokenizer), options=prompt_options(config),
        fields=task_fields(config), loader=example_loader(config), manifest=manifest_file(config),
    )  # fmt: skip
    for sample in samples.values():
        check_windows(pair, sample.examples, evaluation.max_new_tokens)
    with kept_memory(config.runtime.keep_memory):
        report = run_evaluation(
            config.direction.name, pair, interface, samples, Path(config.paths.run) / FOLDER, options, variant=config.paths.variant,
            configuration=identity_of(config), restart=evaluation.restart,
            reuse=Path(config.paths.reuse) / FOLDER if config.paths.reuse else None,
            progress_seconds=config.runtime.progress_seconds,
        )  # fmt: skip
    if config.paths.modules:  # nothing was trained here that would have left the settings
        write_config(config.paths.run, as_dict(config))
    return report


def identity_of(config: Config) -> dict[str, Any]:
    """What identifies the records beside what the harness itself notes; a training seed of 0, the default, is left out."""
    seed = {TRAINING_SEED: config.runtime.seed} if config.runtime.seed else {}
    return {"runtime.dtype": config.runtime.dtype, "data.tasks_from": config.data.tasks_from, **seed}


def tables_of_scale(config: Config) -> list[str]:
    """Write the tables of a scale from its records; returns what to print."""
    written = write_tables(
        config.paths.results, config.scale, folder=config.paths.tables, retention=config.budget.retention, variant=config.paths.variant,
        seed=(config.reproduce.seeds or [config.runtime.seed])[0], bootstrap=bootstrap_of(config),
        control_margin=config.evaluation.control_margin, figures=config.evaluation.figures,
    )  # fmt: skip
    return [*written.lines, *(f"wrote {path}" for path in written.files)]
