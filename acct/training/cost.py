"""What a step of the Compiler costs, in forwards of the target over the same examples: a ratio of medians within one process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from acct.latency.clock import timed
from acct.models import compat
from acct.training.compilation import CompilationTask


@dataclass(frozen=True)
class StepCost:
    """Medians of one batch.

    Attributes:
        forward_milliseconds: one plain forward of the target over [c; q], no logits. fresh, kept: a step (loss and gradient) in such
            forwards, with everything frozen computed in the step, and with it at hand (`training.cache_gigabytes`). examples: of the batch.
    """

    forward_milliseconds: float
    fresh: float
    kept: float
    examples: int

    def line(self) -> str:
        return (
            f"a step costs {self.fresh:.1f} target forwards of the same {self.examples} examples, "
            f"{self.kept:.1f} where what is frozen is kept (training.cache_gigabytes)"
        )


def compiler_step_cost(task: CompilationTask, indices: Sequence[int], repetitions: int = 3) -> StepCost:
    """Time the target's forward and the Compiler's step in turns; weights and gradients are left as they were found.

    Args:
        task: its Bridge and residual are set. indices: the examples of one batch. repetitions: of which medians are taken, after one
            round of warm-up.
    """
    target, mine = task.session.pair.target, list(indices)
    ids = task.examples.batch(mine).joined()[0].to(target.device)
    kept = task.bridged(task.freeze(mine))

    def forward() -> None:
        with torch.no_grad(), compat.stock_attention(target.model):
            target.parts.decoder(input_ids=ids, use_cache=False)

    def step(fresh: bool) -> None:
        frozen = task.freeze(mine) if fresh else kept
        loss = task.weights.total(task.terms(frozen, *task.compiled(frozen)))
        torch.autograd.grad(loss, [p for p in task.residual.parameters() if p.requires_grad], allow_unused=True)

    runs: list[Callable[[], None]] = [forward, lambda: step(True), lambda: step(False)]
    times: list[list[float]] = [[] for _ in runs]  # milliseconds
    for _ in range(repetitions + 1):
        for run, seen in zip(runs, times):
            seen.append(timed(run)[0])
    plain, fresh, at_hand = (statistics.median(seen[1:]) for seen in times)
    return StepCost(plain, fresh / plain, at_hand / plain, len(mine))
