"""The three stages in order: each is built, or reused when it was finished from the same inputs (spec 5; style 5)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from acct.allocator.allocator import Allocator
from acct.config.root import Config, as_dict
from acct.config.training import STAGES
from acct.provenance import write_config
from acct.tracking.artifacts import track_artifact
from acct.training import closed_forms
from acct.training.allocation import AllocationTask
from acct.training.artifacts import Artifact, build_or_reuse, load_artifact
from acct.training.checkpoint import Checkpoint
from acct.training.compilation import CompilationTask, compiler_of, prefixed
from acct.training.cost import compiler_step_cost
from acct.training.files import finite
from acct.training.loop import FitReport, Loss, batches, fit
from acct.training.modules import (
    capacity_record,
    load_allocator,
    load_cartographer,
    make_interface,
    new_cartographer,
    uses_allocator,
    uses_cartographer,
)
from acct.training.reading import read_ahead
from acct.training.ridge import fit_ridge, new_ridge, ridge_identity, ridge_names
from acct.training.scoring import ScoringTask
from acct.training.selections import FrozenSelections, freeze_selections
from acct.training.session import Session, open_session

logger = logging.getLogger(__name__)
LATER: dict[str, Any] = {
    "bridge_layers": 1,
    "bridge_heads": "modulo",
    "subspace_width": 0,
    "subspace_tokens": 3,
    "subspace_stride": 2,
    "subspace_ridge": 3e-2,
    "embedding_stride": 1,
    "readout_start": "zero",
    "readout_ridge": 1e-2,
    "continuation": False,
    "attention_output": 0.0,
    "teacher": "kept",
    "behaviour_from": 0.0,
    "readout_rate": 1.0,
    "further_questions": 0,
    "rates": "uniform",
}
"""Fields of the Compiler that came later, with the value that changes nothing: cards leave it out, so that runs from before go on."""
Built = tuple[Mapping[str, Tensor], Mapping[str, Any]]


def train(config: Config) -> dict[str, Artifact]:
    """Run the stages that `config.stage` names; an earlier stage must have finished.

    Returns:
        The artifacts of this run's stages, by kind; none where another run lends its modules.
    Raises:
        ArtifactError: a stage before the first is missing, or something was built from other inputs (the field is named).
    """
    if config.paths.modules:
        logger.info("nothing to train: the modules are those of %s (paths.modules)", config.paths.modules)
        return {}
    with open_session(config) as session:
        session.provenance.note({"capacity": capacity_record(config, session.pair.geometry)})
        if session.parallel.main and not (session.run / "config.yaml").is_file():
            write_config(session.run, as_dict(config))
        found: dict[str, Artifact] = {}
        for stage in STAGES if config.stage == "all" else (config.stage,):
            _RUN[stage](session, found)
            if session.parallel.main:  # only now: a refused stage leaves the configuration that the folder was built with
                write_config(session.run, as_dict(config))
        if store := session.states.store:
            session.provenance.note({"state_cache": {"read": store.hits, "computed": store.misses, "stored": store.written}})
            logger.info("%s: %d states read, %d computed, %d of them stored", store.folder, store.hits, store.misses, store.written)
        seconds = session.provenance.record["phases_seconds"]
        if session.parallel.main:
            split = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
            peak = session.provenance.record.get("peak_memory_bytes", 0) / 2**20
            logger.info("%s: %s; peak memory %.0f MiB", session.run, split, peak)
        return found


def _upstream(session: Session, found: dict[str, Artifact], kind: str, wanted: bool) -> Artifact | None:
    """An artifact that a stage builds on: of this call, or finished before; None where the configuration does without it."""
    if not wanted:
        return None
    if kind not in found:
        found[kind] = load_artifact(session.run, kind)
    return found[kind]


def _digest(artifact: Artifact | None) -> str | None:
    return None if artifact is None else artifact.digest


def _stage(session: Session, kind: str, identity: Mapping[str, Any], build: Any, track: bool = True) -> tuple[Artifact, bool]:
    config, parallel = session.config, session.parallel
    reuse = Path(config.paths.reuse) if config.paths.reuse else None
    artifact, built = build_or_reuse(
        session.run, kind, identity, build, restart=config.training.restart, reuse=reuse, main=parallel.main, barrier=parallel.barrier
    )
    if parallel.main and track:
        track_artifact(session.tracker, session.run, artifact, config.tracker.weights)
    if not built and parallel.main:
        logger.info("%s: reused, built from the same inputs (%s)", kind, artifact.digest[:12])
    return artifact, built


def _fit(
    session: Session, stage: str, module: nn.Module, loss: Loss, checkpoint: Checkpoint, rates: Mapping[str, Tensor] | None = None
) -> FitReport:
    settings, training = session.settings(stage), session.config.training
    lengths = session.train.first(settings.examples).lengths()
    with session.provenance.phase(stage):
        report = fit(
            stage, module, loss, lengths, settings, checkpoint, tracker=session.tracker, parallel=session.parallel,
            checkpoint_steps=training.checkpoint_steps, checkpoint_seconds=training.checkpoint_seconds,
            progress_seconds=session.config.runtime.progress_seconds, rates=rates,
        )  # fmt: skip
    if session.parallel.main and report.examples:
        rate, seconds = report.examples_per_second, report.seconds
        logger.info("%s: %d examples in %.1f s, %.1f examples/s", stage, report.examples, seconds, rate)
        session.provenance.note({f"{stage}_examples_per_second": round(rate, 2)})
    return report


def _measured(session: Session, stage: str, terms: Mapping[str, float]) -> dict[str, Any]:
    """Log held-out figures and return them for the card."""
    if session.parallel.main and terms:
        logger.info("%s, held out: %s", stage, ", ".join(f"{name} {value:.4f}" for name, value in terms.items()))
        session.tracker.log(f"{stage}_held_out", 0, dict(terms))
    return {"held_out": finite(terms)}


def _cartographer(session: Session, found: dict[str, Artifact]) -> None:
    config, settings, geometry = session.config, session.settings("cartographer"), session.pair.geometry
    if not uses_cartographer(config):
        logger.info("cartographer: not trained (retention %g, ranking %s)", config.budget.retention, config.cartographer.ranking)
        return
    own = {name: value for name, value in asdict(config.cartographer).items() if name not in ("block", "limit")}
    if not own["utility_rows"]:  # cards from before this field go on
        del own["utility_rows"]
    identity = session.base_identity("cartographer") | {
        **{f"cartographer.{name}": value for name, value in own.items()},
        **{f"supervision.{name}": value for name, value in asdict(config.supervision).items()},
    }

    def build(checkpoint: Checkpoint) -> Built:
        module = new_cartographer(config, geometry).to(session.device)
        read_ahead(session, session.train.first(settings.examples))
        report = _fit(session, "cartographer", module, ScoringTask(session, session.train, module), checkpoint)
        facts: dict[str, Any] = {"steps": report.steps, "last": finite(report.last), "capacity": capacity_record(config, geometry)}
        if settings.held_out:
            with session.provenance.phase("cartographer held out"):
                task = ScoringTask(session, session.held_out.first(settings.held_out), module)
                facts |= _measured(session, "cartographer", task.measure(settings.batch))
        return module.state_dict(), facts

    found["cartographer"], _ = _stage(session, "cartographer", identity, build)


def _allocator(session: Session, found: dict[str, Artifact]) -> None:
    config, settings, geometry = session.config, session.settings("allocator"), session.pair.geometry
    if not uses_allocator(config):
        logger.info("allocator: not trained (retention %g, capacities %s)", config.budget.retention, config.allocator.capacities)
        return
    ranking = _upstream(session, found, "cartographer", uses_cartographer(config))
    identity = session.base_identity("allocator") | {
        **{f"allocator.{name}": value for name, value in asdict(config.allocator).items()},
        "cartographer.ranking": config.cartographer.ranking,
        "artifact.cartographer": _digest(ranking),
    }

    def build(checkpoint: Checkpoint) -> Built:
        cartographer = None if ranking is None else load_cartographer(config, geometry, ranking, session.device)
        module = Allocator(geometry.units).to(session.device)
        interface = make_interface(config, geometry, cartographer, None)
        report = _fit(session, "allocator", module, AllocationTask(session, session.train, interface, module), checkpoint)
        facts: dict[str, Any] = {"steps": report.steps, "last": finite(report.last)}
        if settings.held_out:
            with session.provenance.phase("allocator held out"):
                others = session.held_out.first(settings.held_out)
                uniform = AllocationTask(session, others, interface, Allocator(geometry.units).to(session.device))
                learned = AllocationTask(session, others, interface, module)
                terms = prefixed(uniform.measure(settings.batch), "uniform") | prefixed(learned.measure(settings.batch), "learned")
                facts |= _measured(session, "allocator", terms)
        return module.state_dict(), facts

    found["allocator"], _ = _stage(session, "allocator", identity, build)


def _selections(session: Session, found: dict[str, Artifact]) -> Artifact:
    """Freeze what the Compiler's examples, and its held-out ones, keep."""
    config, settings, geometry = session.config, session.settings("compiler"), session.pair.geometry
    ranking = _upstream(session, found, "cartographer", uses_cartographer(config))
    counting = _upstream(session, found, "allocator", uses_allocator(config))
    held_out = session.held_out.first(settings.held_out)
    identity = {
        name: value
        for name, value in session.base_identity("compiler").items()
        if not name.startswith("training.compiler.") or name == "training.compiler.examples"
    } | {
        "held-out data": held_out.digest(),
        "cartographer.ranking": config.cartographer.ranking,
        "allocator.capacities": config.allocator.capacities,
        "training.allocator.seed": config.training.allocator.seed,  # of random orders
        "artifact.cartographer": _digest(ranking),
        "artifact.allocator": _digest(counting),
    }

    def build(checkpoint: Checkpoint) -> Built:
        interface = make_interface(
            config, geometry,
            None if ranking is None else load_cartographer(config, geometry, ranking, session.device),
            None if counting is None else load_allocator(geometry, counting, session.device),
        )  # fmt: skip
        tensors: dict[str, Tensor] = {}
        with session.provenance.phase("selections"):
            for part, examples in (("train", session.train.first(settings.examples)), ("held_out", held_out)):
                if len(examples):
                    frozen = freeze_selections(session, interface, examples, settings.batch, f"selections, {part}")
                    tensors |= {f"{part}.{name}": value for name, value in frozen.tensors().items()}
        return tensors, {"examples": settings.examples, "held_out": len(held_out)}

    artifact, _ = _stage(session, "selections", identity, build)
    found["selections"] = artifact
    return artifact


def frozen_part(artifact: Artifact, part: str, session: Session) -> FrozenSelections:
    """The selections of the training or held-out examples."""
    target = session.pair.geometry.target
    tensors = {name.removeprefix(f"{part}."): value for name, value in artifact.tensors.items() if name.startswith(f"{part}.")}
    return FrozenSelections.load(tensors, target.layers, target.kv_heads)


def _compiler(session: Session, found: dict[str, Artifact]) -> None:
    config, settings, geometry = session.config, session.settings("compiler"), session.pair.geometry
    selections = _selections(session, found)
    named = {name: value for name, value in asdict(config.compiler).items() if (name, value) not in LATER.items()}
    identity = session.base_identity("compiler") | {
        **{f"compiler.{name}": value for name, value in named.items() if name not in ("limit", "warn_above")},
        "artifact.cartographer": _digest(found.get("cartographer")),
        "artifact.allocator": _digest(found.get("allocator")),
        "artifact.selections": selections.digest,
    }
    begins = closed_forms.finished_compiler(session)
    if begins is not None:
        identity["artifact.start"] = begins.digest
    if config.compiler.continuation:
        asked = config.supervision
        identity |= {"supervision.query_rows": asked.query_rows, "supervision.continuation_rows": asked.continuation_rows}
    if config.compiler.further_questions:
        identity["further questions"] = session.train.first(settings.examples).further_digest()

    def build(checkpoint: Checkpoint) -> Built:
        examples, held_out = session.train.first(settings.examples), session.held_out.first(settings.held_out)
        train_part = frozen_part(selections, "train", session)
        held_part = frozen_part(selections, "held_out", session) if len(held_out) else None
        room = config.training.cache_gigabytes * 2**30 if config.compiler.residual and not settings.regroup else 0.0
        task = CompilationTask(session, examples, train_part, room)
        measured = None if held_part is None else CompilationTask(session, held_out, held_part, room)
        task.behaves = config.compiler.behaviour_from == 0
        order = batches(examples.lengths(), settings.batch, settings.seed, 0, settings.regroup)
        inputs = closed_forms.identity_of(session, named, selections.digest)
        if begins is not None:
            inputs["artifact.start"] = begins.digest

        def prepare(_: Checkpoint) -> Built:
            if begins is not None:
                return closed_forms.take_over(session, begins)
            return closed_forms.fit_closed_forms(session, task, measured, order)

        start, _ = _stage(session, closed_forms.KIND, inputs, prepare, track=False)
        begun = closed_forms.open_closed_forms(session, start.tensors, start.card)
        facts: dict[str, Any] = {"bridge": begun.report, "capacity": capacity_record(config, geometry)}
        _log_bridge(session, facts["bridge"])
        bridge, residual = begun.bridge, begun.residual
        for one in filter(None, (task, measured)):
            one.subspace = begun.subspace
        if residual is None:
            return compiler_of(bridge, None, begun.subspace).state_dict(), facts
        task.bridge, task.residual = task.bridge or bridge, residual
        task.epoch_steps = len(order)
        task.behaves, task.behaviour_step = True, round(config.compiler.behaviour_from * settings.epochs * len(order))
        if session.parallel.main:
            cost = compiler_step_cost(task, order[0])
            logger.info("compiler: %s", cost.line())
            session.provenance.note({"compiler_step_target_forwards": {"fresh": round(cost.fresh, 2), "kept": round(cost.kept, 2)}})
        factor, rates = config.compiler.readout_rate, None
        if config.compiler.rates == "relative":
            rates = {name: factor * rate for name, rate in begun.rates.items()}
        report = _fit(session, "compiler", residual, task, checkpoint, rates)
        facts |= {"steps": report.steps, "last": finite(report.last)}
        if measured is not None:
            measured.bridge, measured.residual = bridge, residual
            with session.provenance.phase("compiler held out"):
                terms = prefixed(measured.measure(settings.batch, False), "bridge")
                terms |= prefixed(measured.measure(settings.batch, True), "compiler")
                facts |= _measured(session, "compiler", terms)
        return compiler_of(bridge, residual, begun.subspace).state_dict(), facts

    found["compiler"], _ = _stage(session, "compiler", identity, build)


def _log_bridge(session: Session, report: Mapping[str, Any]) -> None:
    """Held-out R2 of the Bridge by layer, as text and as metrics."""
    if not session.parallel.main:
        return
    what = "held-out" if report["held_out"] else "in-sample"
    for row in report["by_layer"]:
        shown = {name: float("nan") if row[name] is None else row[name] for name in ("keys", "values")}
        logger.info("bridge, layer %d: %s R2 keys %.3f, values %.3f", row["layer"], what, shown["keys"], shown["values"])
        session.tracker.log("bridge", int(row["layer"]), {f"r2_{name}": value for name, value in shown.items()})


def _ridge(session: Session, found: dict[str, Artifact]) -> None:
    """Every configured linear map, each an artifact of its own."""
    for name in ridge_names(session.config):
        identity = ridge_identity(session, new_ridge(session.pair, name))
        found[name], _ = _stage(session, name, identity, partial(fit_ridge, session, name))


_RUN = {"cartographer": _cartographer, "allocator": _allocator, "compiler": _compiler, "ridge": _ridge}
