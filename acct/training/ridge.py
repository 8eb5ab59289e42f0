"""Optional stage: closed-form linear maps of whole contexts, the rows `ridge_<m>` and `ridge_<m>_all` (spec 11).

Not part of stage=all: nothing of the method depends on it. Each map is an artifact of its own, <run>/ridge_8 and so on. A checkpoint holds
the sums of the current pass and the maps of earlier ones, so that an interrupted fit continues at the next batch and ends with the
same sums.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acct.config.root import Config
from acct.errors import ArtifactError
from acct.methods.ridge_fit import HeldOut, RidgeStatistics
from acct.methods.ridge_map import RidgeMap, map_of_row, parse_ridge, ridge_name
from acct.models.pair import Pair
from acct.pipeline import Interface
from acct.progress import Progress
from acct.training.artifacts import load_artifact
from acct.training.checkpoint import Checkpoint, load_weights
from acct.training.files import finite, read_card
from acct.training.frozen import move_native
from acct.training.loop import Interrupted, stop_requests
from acct.training.selections import batches_of
from acct.training.session import Examples, Session
from acct.types import NativeStates, SourceStates

logger = logging.getLogger(__name__)


def ridge_names(config: Config) -> list[str]:
    """Every configured map, once each."""
    ridge = config.ridge
    named = [(count, "local") for count in ridge.source_layers] + [(count, "all") for count in ridge.all_heads]
    return list(dict.fromkeys(ridge_name(*one) for one in named))


def new_ridge(pair: Pair, name: str) -> RidgeMap:
    """An empty map; more layers than the source has are all of them."""
    layers, heads = parse_ridge(name) or (0, "")
    return RidgeMap(pair.geometry, min(layers, pair.geometry.source.layers), heads)


def ridge_identity(session: Session, linear: RidgeMap) -> dict[str, Any]:
    """What a fit depends on: models, data and the map; neither the budget nor how the Compiler is optimised."""
    kept = ("training.compiler.examples", "training.compiler.batch")
    base = session.base_identity("compiler")
    return {name: value for name, value in base.items() if name in kept or not name.startswith(("budget.", "training."))} | {
        "ridge.source_layers": linear.source_layers,
        "ridge.heads": linear.heads,
        "ridge.penalty": session.config.ridge.penalty,
    }


def fit_ridge(session: Session, name: str, checkpoint: Checkpoint) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Fit one map on the Compiler's examples; returns its weights and the card's facts.

    Raises:
        ConfigError: a singular system. ArtifactError: a checkpoint of other inputs. Interrupted: Ctrl-C, after saving.
    """
    settings, parallel, training = session.settings("compiler"), session.parallel, session.config.training
    examples, linear = session.train.first(settings.examples), new_ridge(session.pair, name).to(session.device)
    state = RidgeStatistics(linear, session.config.ridge.gigabytes)
    batches, passes = batches_of(len(examples), settings.batch, examples.lengths()), len(state.passes)
    checkpoint = replace(checkpoint, identity={**checkpoint.identity, "ridge.gigabytes": session.config.ridge.gigabytes})
    nothing = torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # checkpoints hold a module and an optimiser
    done = checkpoint.load(state, nothing)
    if not parallel.main:
        state.products.zero_(), state.cross.zero_()  # what was summed before lies with the first process
    saved_at = time.perf_counter()
    total = passes * len(batches)
    with (
        session.provenance.phase(name),
        stop_requests() as stop,
        Progress(name, total, done=done, unit="batches", every=session.config.runtime.progress_seconds, enabled=parallel.main) as display,
    ):
        for step in range(done, total):
            number, place = divmod(step, len(batches))
            if mine := parallel.share(batches[place]):
                state.add(number, *_read(session, examples, mine))
            late = training.checkpoint_seconds is not None and time.perf_counter() - saved_at >= training.checkpoint_seconds
            late = late or (training.checkpoint_steps is not None and (step + 1) % training.checkpoint_steps == 0)
            asked = parallel.sum(torch.tensor([float(stop()), float(late)], device=session.device)).tolist()
            last = place == len(batches) - 1
            if last or any(asked):  # sums of all processes, from now on counted in the first one only
                for sums in (state.products, state.cross):
                    sums.copy_(parallel.sum(sums))
            if last:
                state.solve(number, session.config.ridge.penalty)
            elif any(asked) and not parallel.main:
                state.products.zero_(), state.cross.zero_()
            if any(asked) and step + 1 < total:
                if parallel.main:
                    checkpoint.save(state, nothing, step + 1)
                saved_at = time.perf_counter()
            display.update(1)
            if asked[0] and step + 1 < total:
                raise Interrupted(
                    f"{name} stopped after batch {step + 1} of {total}; saved in {checkpoint.folder}. The same command continues."
                )
    rows = sum(len(item.context_ids) for item in examples.items)
    return linear.state_dict(), {"ridge": _report(session, name, linear, rows, passes)}


def _read(session: Session, examples: Examples, indices: list[int]) -> tuple[SourceStates, NativeStates]:
    batch, pair, cache = examples.batch(indices), session.pair, session.states
    states = cache.context(pair.source, batch.context_ids, batch.context_lengths).to(session.device)
    return states, move_native(cache.native(pair.target, batch), session.device)


def _report(session: Session, name: str, linear: RidgeMap, rows: int, passes: int) -> dict[str, Any]:
    """Rows, coefficients of one output per row, and held-out R2 of keys and values by target layer."""
    features, settings = linear.key_map.shape[1], session.settings("compiler")
    ratio, warn_above = features / rows, session.config.compiler.warn_above
    found: dict[str, Any] = {"rows": rows, "features": features, "parameters_per_row": round(ratio, 6), "passes": passes}
    if ratio > warn_above:
        logger.warning(
            "%s: %d rows for %d coefficients of each output (parameters / rows %.2f, above compiler.warn_above=%.2f): expect it to "
            "overfit. Fit on more examples (training.compiler.examples) or raise ridge.penalty.", name, rows, features, ratio, warn_above,
        )  # fmt: skip
    examples = session.held_out.first(settings.held_out)
    if len(examples):
        measured = HeldOut(linear)
        for indices in batches_of(len(examples), settings.batch, examples.lengths()):
            measured.add(*_read(session, examples, indices))
        layers = linear.geometry.target.layers
        keys, values = (finite(dict(enumerate(r2.view(layers, -1).nanmean(1).tolist()))) for r2 in measured.r2())
        found["held_out_r2"] = [{"layer": layer, "keys": keys[layer], "values": values[layer]} for layer in range(layers)]
        means = {kind: float(r2.nanmean()) for kind, r2 in zip(("keys", "values"), measured.r2())}
        found |= {f"r2_{kind}": value for kind, value in finite(means).items()}
        if session.parallel.main:
            logger.info("%s: %d rows, held-out R2 of keys %.3f, of values %.3f (means over units)", name, rows, *means.values())
    return found


def load_ridge(config: Config, pair: Pair, name: str, run: Path | str | None = None) -> tuple[RidgeMap, str]:
    """A fitted map of a run folder, on the interface's device, and its digest.

    Args:
        run: another folder than config.paths.run.
    Raises:
        ArtifactError: it is not fitted yet (the command is named), damaged, or belongs to other models.
    """
    run = Path(config.paths.run if run is None else run)
    if read_card(run / name) is None:
        layers, heads = parse_ridge(name) or (0, "")
        field = "all_heads" if heads == "all" else "source_layers"
        wanted = "" if name in ridge_names(config) else f" 'ridge.{field}=[{layers}]'"
        raise ArtifactError(
            f"{run} has no fitted {name}. Fit it first: acct train stage=ridge direction={config.direction.name}{wanted}, with the same "
            "settings as this command."
        )
    artifact = load_artifact(run, name)
    for side, adapter in (("source", pair.source), ("target", pair.target)):
        built = artifact.card["built_from"].get(f"direction.{side}")
        if built != adapter.fingerprint:
            raise ArtifactError(
                f"{run / name} was fitted with direction.{side} = {built!r}, now it is {adapter.fingerprint!r}. Fit it again: "
                "acct train stage=ridge training.restart=true."
            )
    linear = new_ridge(pair, name)
    load_weights(linear, artifact.tensors, run / name)
    return linear.to(pair.interface_device).eval(), artifact.digest


def with_ridge(interface: Interface, config: Config, pair: Pair, methods: Iterable[str], run: Path | str | None = None) -> Interface:
    """The interface with the fitted map of every method that is one; their digests join its identity.

    Raises:
        ArtifactError: see `load_ridge`.
    """
    maps = dict.fromkeys(fitted for name in methods if (fitted := map_of_row(name)) is not None)
    found = {name: load_ridge(config, pair, name, run) for name in maps}
    if not found:
        return interface
    identity = {**interface.identity, **{name: digest for name, (_, digest) in found.items()}}
    return replace(interface, linear_maps={name: linear for name, (linear, _) in found.items()}, identity=identity)
