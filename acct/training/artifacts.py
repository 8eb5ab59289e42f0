"""What stages hand over: weights or selections with a card that says, with hashes, what they were built from (style 5).

<run>/cartographer, <run>/allocator, <run>/selections, <run>/compiler      each `weights-<hash>.safetensors` and `card.json`
<run>/closed_forms                                                         what the Compiler starts from (`acct.training.closed_forms`)
<run>/ridge_<m>, <run>/ridge_<m>_all                                       likewise, where linear maps were asked for
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from acct.errors import ArtifactError
from acct.training.checkpoint import Checkpoint, first_difference, require_same
from acct.training.files import hash_json, read_card, read_folder, write_folder

FORMAT = "acct-artifact-1"
KINDS = ("cartographer", "allocator", "selections", "compiler")


@dataclass(frozen=True)
class Artifact:
    """A finished stage's result.

    Attributes:
        kind: one of KINDS, or a linear map's name. tensors: its weights. card: everything else; `built_from` and `sha256` among it.
    """

    kind: str
    tensors: Mapping[str, Tensor]
    card: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Identity of the result: its tensors and what they were built from."""
        return hash_json([self.kind, self.card["sha256"], self.card["built_from"]])


def save_artifact(
    run: Path, kind: str, tensors: Mapping[str, Tensor], built_from: Mapping[str, Any], facts: Mapping[str, Any] | None = None
) -> Artifact:
    """Write an artifact, whole or not at all, and read it back."""
    write_folder(run / kind, tensors, {"format": FORMAT, "kind": kind, "built_from": dict(built_from), **(facts or {})})
    return load_artifact(run, kind)


def load_artifact(run: Path, kind: str) -> Artifact:
    """Read an artifact of a run folder.

    Raises:
        ArtifactError: missing, truncated, tampered with, or of another kind.
    """
    folder = run / kind
    if not folder.is_dir() or read_card(folder) is None:
        stage = "compiler" if kind == "selections" else kind
        raise ArtifactError(f"{run} has no finished {kind}. Train it first: acct train stage={stage}.")
    tensors, card = read_folder(folder)
    if card.get("format") != FORMAT or card.get("kind") != kind or not isinstance(card.get("built_from"), dict):
        raise ArtifactError(
            f"{folder} holds a {card.get('format')!r} of kind {card.get('kind')!r}; expected {FORMAT!r} of kind {kind!r}. "
            "Remove the folder, or point paths.run to the right one."
        )
    return Artifact(kind, tensors, card)


def finished(run: Path, kind: str, identity: Mapping[str, Any], restart: bool, reuse: Path | None = None) -> Artifact | None:
    """The artifact if its stage has finished from the same inputs; None if it has to be built.

    Args:
        identity: what this run would build it from. restart: throw away one that was built from something else.
        reuse: another run folder whose artifact is copied when it was built from the same inputs.
    Raises:
        ArtifactError: built from other inputs (the first differing field is named) and not `restart`, or damaged.
    """
    card = read_card(run / kind)
    if card is None and reuse is not None:
        other = read_card(reuse / kind)
        if other is not None and first_difference(identity, other.get("built_from", {})) is None:
            artifact = load_artifact(reuse, kind)
            facts = {name: value for name, value in artifact.card.items() if name not in ("format", "kind", "built_from", "file", "sha256")}
            return save_artifact(run, kind, artifact.tensors, identity, {**facts, "copied_from": reuse.name})
    if card is None:
        return None
    if restart and first_difference(identity, card.get("built_from", {})):
        shutil.rmtree(run / kind)
        return None
    require_same(f"the {kind}", identity, card.get("built_from", {}), run / kind)
    return load_artifact(run, kind)


def stage_checkpoint(run: Path, kind: str, identity: Mapping[str, Any], restart: bool) -> Checkpoint:
    """The checkpoint of a stage; one from other inputs is removed when `restart`, and refused on loading otherwise."""
    checkpoint = Checkpoint(run / kind / "checkpoint", identity)
    card = read_card(checkpoint.folder)
    if restart and card is not None and first_difference(identity, card.get("identity", {})):
        checkpoint.remove()
    return checkpoint


def build_or_reuse(
    run: Path, kind: str, identity: Mapping[str, Any], build: Callable[[Checkpoint], tuple[Mapping[str, Tensor], Mapping[str, Any]]],
    *, restart: bool, reuse: Path | None, main: bool, barrier: Callable[[], None],
) -> tuple[Artifact, bool]:  # fmt: skip
    """One stage: its finished artifact, or the result of `build(checkpoint)` saved as one.

    Args:
        build: returns tensors and further fields of the card. main: whether this process writes; the others wait at `barrier`.
    Returns:
        The artifact, and whether it had to be built.
    """
    if main:
        finished(run, kind, identity, restart, reuse)
    barrier()
    artifact = finished(run, kind, identity, restart=False)
    barrier()
    if artifact is not None:
        return artifact, False
    checkpoint = stage_checkpoint(run, kind, identity, restart and main)
    tensors, facts = build(checkpoint)
    if main:
        save_artifact(run, kind, tensors, identity, facts)
        checkpoint.remove()
    barrier()
    return load_artifact(run, kind), True
