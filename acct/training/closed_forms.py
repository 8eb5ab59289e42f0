"""What the Compiler starts from: subspace, Bridge, W_E, readout and sizes of steps, in closed form, before the first step (spec 4, 5).

One pass over the training examples, another for the readout, and one for the subspace. They can take as long as the training that
follows (eight source layers, all heads), so that their result is an artifact of its own, <run>/closed_forms: a killed run goes on after
them, and another run with the same selections (another loss, other rates) takes them over by `paths.reuse`. With `paths.start` nothing is
fitted: the finished Compiler of another run, of another selection perhaps, stands in their place and is trained on from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from acct.compiler.bridge import Bridge, BridgeStatistics, report
from acct.compiler.readout import start_readout
from acct.compiler.residual import Residual
from acct.compiler.subspace import Subspace
from acct.errors import ArtifactError
from acct.training.artifacts import Artifact, load_artifact
from acct.training.checkpoint import load_weights
from acct.training.compilation import CompilationTask
from acct.training.modules import new_bridge, new_embedding_statistics, new_residual, new_subspace, relative_rates, start_embedding
from acct.training.selections import batches_of
from acct.training.session import Session

KIND = "closed_forms"
_OF_TRAINING = (
    "key_direction", "key_scale", "value", "attention", "attention_output", "behaviour", "attention_positions", "behaviour_positions",
    "continuation", "teacher", "behaviour_from", "further_questions", "rates", "readout_rate", "limit", "warn_above",
)  # fmt: skip
"""Fields of the Compiler that only its loss or its steps read."""


@dataclass(frozen=True)
class ClosedForms:
    """A Compiler before its first step.

    Attributes:
        bridge: fitted. subspace: what it reads, None for source vectors. residual: as it starts, None for the Bridge alone. rates: of
            `relative_rates`, by parameter.
        report: the Bridge's fit, plain numbers for a card.
    """

    bridge: Bridge
    residual: Residual | None
    rates: Mapping[str, Tensor]
    report: Mapping[str, Any]
    subspace: Subspace | None = None


def identity_of(session: Session, named: Mapping[str, Any], selections: str) -> dict[str, Any]:
    """What they depend on: the positions that the Compiler's examples keep, and the Compiler's fields that are not about its loss.

    Args:
        named: the Compiler's fields that cards name. selections: digest of the frozen selections.
    """
    identity = {
        name: value
        for name, value in session.base_identity("compiler").items()
        if not name.startswith("training.compiler.") or name in ("training.compiler.examples", "training.compiler.seed")
    }
    return identity | {f"compiler.{k}": v for k, v in named.items() if k not in _OF_TRAINING} | {"artifact.selections": selections}


def fit_closed_forms(
    session: Session, task: CompilationTask, held_out: CompilationTask | None, order: Sequence[list[int]]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and card of the artifact.

    Args:
        task: over the training examples; what it reads on the way stays in its memory. held_out: for the Bridge's R2.
        order: batches of the training examples.
    """
    config, geometry, settings = session.config, session.pair.geometry, session.config.compiler
    subspace = bound_subspace(session)
    if subspace is not None:
        with session.provenance.phase("subspace"):
            task.fit_subspace(subspace, order, "subspace")
        if held_out is not None:
            held_out.subspace = subspace
    with session.provenance.phase("bridge"):
        embedding = new_embedding_statistics(config, geometry, session.device)
        fitted, other = task.statistics(order, "bridge", embedding), None
        if held_out is not None:
            examples = held_out.examples
            batches = batches_of(len(examples), session.settings("compiler").batch, examples.lengths())
            other = held_out.statistics(batches, "bridge, held out")
        bridge = fitted.solve(settings.ridge)
        facts = {"bridge": bridge_report(session, bridge, fitted, other)}
    tensors = {f"bridge.{name}": value for name, value in bridge.state_dict().items()}
    if subspace is not None:
        tensors |= {f"subspace.{name}": value for name, value in subspace.state_dict().items()}
    if not settings.residual:
        return tensors, facts
    residual = new_residual(config, geometry).to(session.device)
    rates = relative_rates(residual, fitted, embedding)
    if embedding is not None:
        start_embedding(residual, embedding, settings.embedding_anchor)
    del fitted, other, embedding  # gigabytes, where the Bridge reads many vectors
    if settings.readout_start == "ridge":
        task.bridge, task.residual = bridge, residual
        with session.provenance.phase("readout"):
            start_readout(residual, task.readout(order, "readout"), settings.readout_ridge)
    tensors |= {f"residual.{name}": value for name, value in residual.state_dict().items()}
    return tensors | {f"rate.{name}": value.clone() for name, value in rates.items()}, facts  # some are views of others


def finished_compiler(session: Session) -> Artifact | None:
    """The Compiler of `paths.start`; None where none is named.

    Raises:
        ArtifactError: it has not finished, is damaged, or is of other models.
    """
    if not (folder := session.config.paths.start):
        return None
    found = load_artifact(Path(folder), "compiler")
    for name, model in (("direction.source", session.pair.source), ("direction.target", session.pair.target)):
        if found.card["built_from"].get(name) != model.fingerprint:
            raise ArtifactError(f"{folder}/compiler was built with another {name} than this run's. Correct paths.start.")
    return found


def take_over(session: Session, start: Artifact) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and card of the artifact where a finished Compiler is the start: its weights, and the sizes of its own steps."""
    folder = Path(session.config.paths.start)
    before = load_artifact(folder, KIND)
    rates = {name: value for name, value in before.tensors.items() if name.startswith("rate.")}
    return {**start.tensors, **rates}, {"bridge": before.card["bridge"], "started_from": folder.name}


def open_closed_forms(session: Session, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> ClosedForms:
    """The modules of an artifact, on the session's device."""

    def part(name: str) -> dict[str, Tensor]:
        return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}

    config, geometry, where = session.config, session.pair.geometry, session.run / KIND
    bridge = new_bridge(config, geometry)
    load_weights(bridge, part("bridge"), where)
    subspace = bound_subspace(session)
    if subspace is not None:
        load_weights(subspace, part("subspace"), where)
    residual = None
    if config.compiler.residual:
        residual = new_residual(config, geometry)
        load_weights(residual, part("residual"), where)
        residual.to(session.device)
    rates = {name: value.to(session.device) for name, value in part("rate").items()}
    return ClosedForms(bridge.to(session.device), residual, rates, card["bridge"], subspace)


def bound_subspace(session: Session) -> Subspace | None:
    """A subspace of the configured shape on the session's device, over the target's embeddings; None where the Bridge reads none."""
    subspace = new_subspace(session.config, session.pair.geometry)
    return None if subspace is None else subspace.to(session.device).bind(session.pair.target.parts.embedding.weight)


def bridge_report(session: Session, bridge: Bridge, fitted: BridgeStatistics, held_out: BridgeStatistics | None) -> dict[str, Any]:
    """Plain numbers for the card: rows, parameters / rows, R2 on fitted and on held-out examples, by layer."""
    layers = session.pair.geometry.target.layers
    other = held_out if held_out is not None else fitted
    summary = report(bridge, fitted, other, session.config.compiler.warn_above)

    def number(value: float) -> float | None:
        return round(float(value), 6) if math.isfinite(value) else None

    by_layer = [{name: number(value) for name, value in row.items()} for row in summary.by_layer(layers)]
    return {
        "rows_smallest": int(summary.rows.min()),
        "parameters_per_row": number(float(summary.parameters_per_row.max())),
        "held_out": held_out is not None,
        "r2_keys": number(float(summary.keys.nanmean())),
        "r2_values": number(float(summary.values.nanmean())),
        "by_layer": by_layer,
    }
