"""State of an unfinished stage: module, optimiser and step, written atomically and refused when the inputs have changed.

Everything random in a step is seeded by (seed, step), so seed and step *are* the state of the random numbers: a resumed run draws
what an uninterrupted one draws. At one thread on a CPU the two end bit for bit the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acct.errors import ArtifactError
from acct.training.files import CARD, read_card, read_folder, write_folder

FORMAT = "acct-checkpoint-1"


def first_difference(expected: Mapping[str, Any], got: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """First field, in the order of `expected`, whose value differs, with both values; None when all agree."""
    for name in [*expected, *(name for name in got if name not in expected)]:
        if expected.get(name) != got.get(name):
            return name, expected.get(name), got.get(name)
    return None


def require_same(what: str, now: Mapping[str, Any], stored: Mapping[str, Any], folder: Path) -> None:
    """Raise ArtifactError naming the first field that differs between this run's inputs and those that a folder was built from."""
    found = first_difference(now, stored)
    if found:
        name, mine, theirs = found
        raise ArtifactError(
            f"{what} in {folder} was built with {name} = {theirs!r}, this run has {name} = {mine!r}. "
            "Set it back, choose another folder (paths.variant=<name>), or throw the old result away with training.restart=true."
        )


@dataclass
class Checkpoint:
    """The checkpoint of one stage in one folder.

    Args:
        folder: its own folder. identity: everything that the stage is built from; compared field by field on resume.
    """

    folder: Path
    identity: Mapping[str, Any]

    def exists(self) -> bool:
        return (self.folder / CARD).is_file()

    def save(self, module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Write the state after `step` finished steps; the previous checkpoint stands until this one is complete.

        Raises:
            ArtifactError: disk full (the previous checkpoint is kept), or NaN or Inf in the state.
        """
        tensors: dict[str, Tensor] = {f"module.{name}": value for name, value in module.state_dict().items()}
        for index, entry in optimizer.state_dict()["state"].items():
            for name, value in entry.items():
                tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
        card = {"format": FORMAT, "step": step, "identity": dict(self.identity)}
        write_folder(self.folder, tensors, card, stem="state")

    def load(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Restore module and optimiser; returns the number of finished steps, 0 where there is no checkpoint.

        Raises:
            ArtifactError: truncated, tampered with, of another kind, or built from other inputs (the field is named).
        """
        card = read_card(self.folder)
        if card is None:
            return 0
        if card.get("format") != FORMAT:
            raise ArtifactError(
                f"{self.folder} is no checkpoint of format {FORMAT!r}: got {card.get('format')!r}. Remove it to start again."
            )
        require_same("the checkpoint", self.identity, card.get("identity", {}), self.folder)
        tensors, card = read_folder(self.folder)
        weights = {name.removeprefix("module."): value for name, value in tensors.items() if name.startswith("module.")}
        load_weights(module, weights, self.folder)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        return int(card["step"])

    def remove(self) -> None:
        """Delete the checkpoint: its stage has finished, or is thrown away."""
        (self.folder / CARD).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], where: Path) -> None:
    """`load_state_dict` that names the first missing, foreign or misshapen tensor.

    Raises:
        ArtifactError: the weights do not fit the module.
    """
    expected = module.state_dict()
    for name, value in expected.items():
        if name not in weights:
            raise ArtifactError(f"{where} lacks the tensor {name!r}: it was written by another module.")
        if weights[name].shape != value.shape:
            raise ArtifactError(
                f"{where}: tensor {name!r} has shape {list(weights[name].shape)}, expected {list(value.shape)}. Widths or geometry changed."
            )
        if weights[name].dtype != value.dtype:
            raise ArtifactError(f"{where}: tensor {name!r} is {weights[name].dtype}, expected {value.dtype}.")
    foreign = next((name for name in weights if name not in expected), None)
    if foreign:
        raise ArtifactError(f"{where} holds a tensor {foreign!r} that the module does not have: it was written by another module.")
    module.load_state_dict(dict(weights))
