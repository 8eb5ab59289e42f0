"""Artifacts of stages as versions in a tracker: the card, and the weights where they are wanted."""

from __future__ import annotations

from pathlib import Path

from acct.tracking.tracker import Tracker
from acct.training.artifacts import Artifact


def track_artifact(tracker: Tracker, run: Path, artifact: Artifact, weights: bool) -> None:
    """A stage's card, and its weights where they are wanted; its hashes identify the version.

    Args:
        run: the run folder. weights: upload the tensors too (tracker.weights).
    """
    names = ["card.json", *([str(artifact.card["file"])] if weights and artifact.card.get("file") else [])]
    metadata = {
        "digest": artifact.digest, "sha256": artifact.card["sha256"], "run": run.name,
        "held_out": artifact.card.get("held_out"), "steps": artifact.card.get("steps"),
    }  # fmt: skip
    tracker.artifact(f"{run.name}-{artifact.kind}", artifact.kind, [run / artifact.kind / name for name in names], metadata)
