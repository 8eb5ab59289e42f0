"""A small regression that the loop's tests train, also as a process of its own: python -m tests.training.toy <folder> ..."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from acct.config.training import StageConfig
from acct.tracking import Tracker
from acct.training.checkpoint import Checkpoint
from acct.training.loop import FitReport, fit
from acct.training.parallel import Parallel

LENGTHS = [5 + (7 * i) % 11 for i in range(22)]
IDENTITY = {"pair": "a -> b", "data": "0123", "budget.retention": 0.25, "seed": 3}


def settings(**changes: object) -> StageConfig:
    return StageConfig(**{"examples": 22, "epochs": 3, "batch": 4, "learning_rate": 0.02, "schedule": "cosine", "seed": 3, **changes})


def make_module() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.GELU(), nn.Linear(16, 2))


def make_loss(module: nn.Module, pause: float = 0.0, dropout: bool = True):
    generator = torch.Generator().manual_seed(1)
    inputs, outputs = torch.randn(22, 6, generator=generator), torch.randn(22, 2, generator=generator)

    def loss(indices: list[int], step: int) -> tuple[Tensor, dict[str, float]]:
        if not dropout:
            module.eval()
        time.sleep(pause)
        error = (module(inputs[indices]) - outputs[indices]).square().mean()
        return error, {"error": float(error.detach())}

    return loss


def train(
    folder: Path,
    *,
    module: nn.Module | None = None,
    identity: dict | None = None,
    pause: float = 0.0,
    dropout: bool = True,
    every: int | None = 1,
    rates: dict[str, Tensor] | None = None,
    **changes: object,
) -> tuple[nn.Module, FitReport]:
    module = module or make_module()
    parallel = Parallel()
    with Tracker(folder if parallel.main else None) as tracker:
        report = fit(
            "toy",
            module,
            make_loss(module, pause, dropout),
            LENGTHS,
            settings(**changes),
            Checkpoint(folder / "checkpoint", IDENTITY if identity is None else identity),
            tracker=tracker,
            parallel=parallel,
            checkpoint_steps=every,
            rates=rates,
        )
    return module, report


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--no-dropout", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    try:
        train(given.folder, pause=given.pause, dropout=not given.no_dropout)
    except KeyboardInterrupt as error:
        raise SystemExit(f"interrupted: {error}") from None
