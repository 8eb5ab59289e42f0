"""The evaluation of one direction: interface check, every task and method, records, validity (spec 7, 8).

Source states, native states, ranking, selection and compiled states of a batch are computed once and shared by the methods. Records
are on the disk after every batch of every method; a killed run continues where it stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from acct.config.compressors import CompressorsConfig
from acct.data.batches import collate, length_sorted_batches
from acct.data.prompts import EncodedExample
from acct.errors import ConfigError
from acct.evaluation.report import EvaluationReport
from acct.evaluation.reuse import take_over
from acct.evaluation.samples import Sample
from acct.evaluation.scoring import ScoringRules, score_batch, stop_ids
from acct.evaluation.store import RecordStore
from acct.interface_check import InterfaceReport, interface_check
from acct.methods.base import Method
from acct.methods.prepared import Prepared, Stopwatch
from acct.methods.registry import COMPRESSORS, DEFAULT, get_method
from acct.models.pair import Pair
from acct.pipeline import Interface, count
from acct.progress import Progress
from acct.provenance import Provenance, peak_memory_bytes
from acct.reporting.figures import Sheet
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import Records
from acct.reporting.validity import judge

logger = logging.getLogger(__name__)
BYTES_LIMIT = 1.05  # measured bytes of a mounted context over 2 P k d bytes per number


@dataclass(frozen=True)
class EvaluationOptions:
    """The harness.

    Attributes:
        methods: registry names. batch: most examples run together; changes speed only. seed: of random orders and noise.
        scoring: how outputs become scores. check_examples, check_tokens, check_tolerance: the interface check.
        bootstrap, control_margin: of the validity line. shortened: the run is a shortened one and stays out of tables.
        compressors: settings of the same-model compressors among the methods.
    """

    methods: tuple[str, ...] = DEFAULT
    batch: int = 16
    seed: int = 0
    scoring: ScoringRules = field(default_factory=ScoringRules)
    check_examples: int = 4
    check_tokens: int = 4
    check_tolerance: float = 0.05
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    control_margin: float = 0.1
    shortened: bool = False
    compressors: CompressorsConfig = field(default_factory=CompressorsConfig)

    def __post_init__(self) -> None:
        if not self.methods or len(set(self.methods)) != len(self.methods):
            raise ConfigError(f"methods must be at least one name, none twice, got {list(self.methods)}.")
        for name in ("batch", "check_examples", "check_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"evaluation.{name} must be at least 1, got {getattr(self, name)}.")


def run_evaluation(
    direction: str,
    pair: Pair,
    interface: Interface,
    samples: Mapping[str, Sample],
    folder: Path | str,
    options: EvaluationOptions | None = None,
    *,
    variant: str = "",
    configuration: Mapping[str, Any] | None = None,
    restart: bool = False,
    reuse: Path | str | None = None,
    show_progress: bool = True,
    progress_seconds: float = 5.0,
) -> EvaluationReport:
    """Score every method on every sample and write <folder>/records.parquet.

    Args:
        direction: name in the records. pair, interface: frozen models and trained modules. samples: by task.
        folder: by convention <results>/<scale>/<run>/evaluation, where `write_tables` looks.
        variant: name of a retrained ablation, "" otherwise. configuration: further JSON values that identify the run.
        restart: throw away records of another configuration instead of refusing.
        reuse: evaluation folder of another run, whose answers without a transfer are taken where they would be the same.
    Returns:
        figures, validity, seconds, memory; `report.lines()` is what a command prints.
    Raises:
        InterfaceError: native states mounted at every position do not reproduce the native run; nothing is scored then.
        ArtifactError: the folder holds records of another configuration (the field is named), or the disk is full.
    """
    options = options or EvaluationOptions()
    if not samples:
        raise ConfigError("no task to evaluate: give at least one of the tasks that acct.data.tasks.registry lists.")
    methods = _usable(pair, options.methods)
    identity = _identity(direction, variant, pair, interface, samples, options, configuration or {})
    store = RecordStore(folder, identity, restart)
    for task, sample in samples.items():
        store.check(task, {example.id: example.prompt_hash for example in sample.examples})
    taken = take_over(store, reuse, samples, methods) if reuse is not None else 0
    provenance, clock = Provenance(folder), Stopwatch()
    with provenance.phase("evaluation"), torch.no_grad():
        with clock.phase("interface check"):
            check = check_pair(pair, samples, options)
        for module in (interface.cartographer, interface.allocator, interface.compiler):
            if module is not None:
                module.eval()
        total = sum(len(sample.examples) for sample in samples.values()) * len(methods)
        done = sum(len(store.done(task, method.name) & _ids(sample)) for task, sample in samples.items() for method in methods)
        with Progress(
            f"evaluate {direction}", total, done=done, unit="answers", every=progress_seconds, enabled=show_progress and done < total
        ) as display:
            for task, sample in samples.items():
                _run_task(direction, pair, interface, task, sample, methods, store, options, clock, display)
    store.finish()
    frame = store.frame(list(samples))
    sheet = Sheet(Records(frame, {direction: store.configuration}), options.bootstrap)
    mounted = frame[frame["budget_bytes"] > 0]
    ratio = float(mounted["mounted_bytes"].sum() / mounted["budget_bytes"].sum()) if len(mounted) else None
    validity = judge(sheet, margin=options.control_margin)
    if not validity.valid and "acct" in options.methods:
        logger.warning("%s: %s", direction, validity.lines()[0])
    if ratio is not None and ratio > BYTES_LIMIT:
        logger.warning("%s: a mounted context takes %.3f x 2 P k d bytes, more than %.2f.", direction, ratio, BYTES_LIMIT)
    new = total - done
    provenance.note({
        "direction": direction, "seeds": {"evaluation": options.seed, "bootstrap": options.bootstrap.seed}, "valid": validity.valid,
        "interface_check": asdict(check), "mounted_bytes_ratio": ratio, "seconds": {k: round(v, 3) for k, v in clock.seconds.items()},
        "capacities": capacities(pair, interface, samples), "inputs": {name: store.configuration[name] for name in ("source", "target")},
    })  # fmt: skip
    if taken:
        provenance.note({"taken": {"run": Path(str(reuse)).parent.name, "answers": taken}})
    seconds, peak = dict(clock.seconds), peak_memory_bytes()
    return EvaluationReport(direction, Path(folder), sheet, validity, check, seconds, peak, ratio, new, store.kept)


def check_pair(pair: Pair, samples: Mapping[str, Sample], options: EvaluationOptions) -> InterfaceReport:
    """The interface check on the first examples of the samples, taken in turn from each task."""
    turns = zip(*(sample.examples[: options.check_examples] for sample in samples.values()))
    chosen = [example for turn in turns for example in turn][: options.check_examples]
    batch = collate(chosen, pair.tokenizer.pad_token_id).to(pair.target.device)
    stops = stop_ids(pair.target, pair.tokenizer)
    return interface_check(pair.target, batch, options.check_tokens, options.check_tolerance, stop_ids=stops)


def _run_task(
    direction: str, pair: Pair, interface: Interface, task: str, sample: Sample, methods: Sequence[Method], store: RecordStore,
    options: EvaluationOptions, clock: Stopwatch, display: Progress,
) -> None:  # fmt: skip
    strangers = sample.strangers()
    finished = {method.name: store.done(task, method.name) for method in methods}
    for indices in length_sorted_batches(sample.examples, options.batch):
        examples = [sample.examples[i] for i in indices]
        shared: dict[tuple[int, ...], Prepared] = {}
        for method in methods:
            open_rows = [row for row, example in enumerate(examples) if example.id not in finished[method.name]]
            if not open_rows:
                continue
            prepared = shared.get(tuple(open_rows))
            if prepared is None:  # the whole batch, but for a resumed run with another batch size
                chosen: list[EncodedExample] = [examples[row] for row in open_rows]
                others = [strangers[indices[row]] for row in open_rows]
                observes = any(name in COMPRESSORS for name in finished)
                prepared = shared[tuple(open_rows)] = Prepared(
                    pair, interface, chosen, others, options.seed, clock, options.compressors, observes
                )
            if method.name == "wrong_document" and any(other is None for other in prepared.strangers):
                logger.warning("%s: all contexts of the sample are the same; wrong_document is left out.", task)
                display.update(len(open_rows), note=task)
                continue
            with clock.phase(f"answer {method.name}"):
                rows = score_batch(method.mount(prepared), sample, prepared.examples, pair.tokenizer, options.scoring)
            store.append(task, [{"direction": direction, "method": method.name, **row} for row in rows])
            display.update(len(rows), note=f"{task} {method.name}")


def capacities(pair: Pair, interface: Interface, samples: Mapping[str, Sample]) -> dict[str, Any]:
    """What each unit keeps of the sample's median context: N, and slots by layer and head, tail included."""
    lengths = sorted(len(example.context_ids) for sample in samples.values() for example in sample.examples)
    median = torch.tensor([lengths[len(lengths) // 2]])
    kept = count(interface, pair.geometry, median) + interface.rule.tails(median)
    target = pair.geometry.target
    return {"context_tokens": int(median), "counts": kept.view(target.layers, target.kv_heads).tolist()}


def _usable(pair: Pair, names: Sequence[str]) -> list[Method]:
    """The methods that this pair allows; the others are named once and stay dashes."""
    methods = []
    for method in map(get_method, names):
        reason = method.applicable(pair)
        if reason is None:
            methods.append(method)
        else:
            logger.warning("%s is left out on this pair: %s.", method.name, reason)
    return methods


def _ids(sample: Sample) -> set[str]:
    return {example.id for example in sample.examples}


def _identity(
    direction: str, variant: str, pair: Pair, interface: Interface, samples: Mapping[str, Sample], options: EvaluationOptions,
    configuration: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """What records depend on, flat: a difference in any of these refuses to continue them."""
    compressors = asdict(options.compressors) if COMPRESSORS & set(options.methods) else {}
    return {
        **configuration,
        **{f"compressors.{name}": value for name, value in compressors.items() if name not in ("query_aware", "block")},
        **{f"interface.{name}": value for name, value in interface.identity.items()},
        **{f"sample.{task}": sample.digest() for task, sample in samples.items()},
        **{f"scoring.{name}": value for name, value in asdict(options.scoring).items() if name not in ("candidate_rows", "max_new_tokens")},
        "direction": direction, "variant": variant, "source": pair.source.fingerprint, "target": pair.target.fingerprint,
        "retention": float(interface.rule.retention), "tail_tokens": int(interface.rule.tail_tokens), "ranking": interface.ranking,
        "max_new_tokens": options.scoring.max_new_tokens, "seed": options.seed, "shortened": options.shortened,
    }  # fmt: skip
