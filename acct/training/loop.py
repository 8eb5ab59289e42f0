"""The only training loop: AdamW, clipped gradients, linear warm-up, checkpoints, resume, data parallelism (spec 5, Schedule).

A stage gives a module and a loss over example indices; everything else is the same for all three stages. The order of examples is a
function of (seed, epoch), everything random inside a step a function of (seed, step).
"""

from __future__ import annotations

import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch
from torch import Tensor, nn

from acct.config.training import StageConfig
from acct.errors import ModelError
from acct.progress import Progress
from acct.tracking import Tracker
from acct.training.checkpoint import Checkpoint
from acct.training.parallel import Parallel

Terms = dict[str, float]
Loss = Callable[[list[int], int], tuple[Tensor, Terms]]
POOL = 8  # batches whose examples are sorted by length together: less padding, and still a random order


class Interrupted(KeyboardInterrupt):
    """The user stopped the run; the message says what was saved."""


@dataclass(frozen=True)
class FitReport:
    """What a stage's training did in this process.

    Attributes:
        steps: of the whole stage. resumed_at: first step of this run. seconds, examples: of this run.
        last: terms of the last step, means over its examples.
    """

    steps: int
    resumed_at: int
    seconds: float
    examples: int
    last: Terms

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.seconds if self.seconds > 0 else 0.0


def batches(lengths: Sequence[int], batch: int, seed: int, epoch: int, regroup: bool = True) -> list[list[int]]:
    """The batches of one epoch: a seeded order in which the examples of a batch have similar lengths.

    Args:
        lengths: tokens of each example. batch: examples of one step. regroup: False keeps the members of batches in all epochs.
    Returns:
        ceil(len / batch) lists of indices; every index once.
    """
    draw = random.Random(f"{seed} {epoch if regroup else 'all'}")
    order = list(range(len(lengths)))
    draw.shuffle(order)
    found = []
    for start in range(0, len(order), batch * POOL):
        pool = sorted(order[start : start + batch * POOL], key=lambda index: lengths[index])
        found += [pool[i : i + batch] for i in range(0, len(pool), batch)]
    random.Random(f"{seed} {epoch} order").shuffle(found)
    return found


def rate_factor(step: int, steps: int, warmup: float, schedule: str) -> float:
    """Factor of the learning rate at a step: linear over the first `warmup` of the steps, then constant or a cosine to zero."""
    warm = math.ceil(warmup * steps)
    if step < warm:
        return (step + 1) / warm
    if schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(steps - warm, 1)))


def make_optimizer(module: nn.Module, settings: StageConfig) -> torch.optim.AdamW:
    """AdamW; weight decay acts on matrices only, not on gains, biases and the Allocator's preferences."""
    wanted = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in wanted if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in wanted if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2))


@contextmanager
def seeded(seed: int, step: int) -> Iterator[None]:
    """Random numbers inside are a function of (seed, step); the process's own state is left as it was."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed((seed * 1_000_003 + step) % (1 << 62))
        yield


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM become a request to stop after the current step; a second Ctrl-C stops at once, without saving."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fit(
    name: str,
    module: nn.Module,
    loss: Loss,
    lengths: Sequence[int],
    settings: StageConfig,
    checkpoint: Checkpoint,
    *,
    tracker: Tracker,
    parallel: Parallel | None = None,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float | None = None,
    progress_seconds: float = 5.0,
    rates: Mapping[str, Tensor] | None = None,
) -> FitReport:
    """Train a module, or continue from its checkpoint.

    Args:
        name: stage, in messages and metric names. module: its parameters with requires_grad are trained, in place.
        loss: (example indices, step) -> mean loss over these examples, and further terms, each a mean over them.
        lengths: tokens of every example; their number is the number of examples.
        rates: by parameter name, a factor on its steps that broadcasts to it; 1 where none is given.
        checkpoint: where the state goes, after `checkpoint_steps` steps or `checkpoint_seconds`, on an interrupt and at the end.
    Returns:
        A report; the module holds the trained weights.
    Raises:
        ModelError: the loss is NaN or Inf (the last checkpoint stays). ArtifactError: see `Checkpoint`. Interrupted: Ctrl-C, after saving.
    """
    parallel = parallel or Parallel()
    optimizer = make_optimizer(module, settings)
    per_epoch = math.ceil(len(lengths) / settings.batch)
    steps = per_epoch * settings.epochs
    start = checkpoint.load(module, optimizer)
    if parallel.main:
        tracker.rewind(name, start)
    clock, saved_at, saved_step, seen = time.perf_counter(), time.perf_counter(), start, 0
    last: Terms = {}
    order: list[list[int]] = []
    module.train()
    passed, rest = divmod(start, per_epoch)
    done = passed * len(lengths) + sum(map(len, batches(lengths, settings.batch, settings.seed, passed, settings.regroup)[:rest]))

    def save(finished: int) -> None:
        nonlocal saved_at, saved_step
        if parallel.main:
            checkpoint.save(module, optimizer, finished)
        saved_at, saved_step = time.perf_counter(), finished

    total = len(lengths) * settings.epochs
    display = Progress(name, total, done=done, every=progress_seconds, enabled=parallel.main)
    with stop_requests() as stop, display:
        for step in range(start, steps):
            epoch, place = divmod(step, per_epoch)
            if place == 0 or not order:
                order = batches(lengths, settings.batch, settings.seed, epoch, settings.regroup)
            terms = _step(module, optimizer, loss, order[place], step, steps, settings, parallel, stop, rates or {})
            stopping = terms.pop("stop") > 0
            if not math.isfinite(terms["loss"]):
                raise ModelError(
                    f"{name}: the loss is {terms['loss']} at step {step + 1} of {steps}. The checkpoint of step {saved_step} is kept; "
                    f"lower training.{name}.learning_rate (now {settings.learning_rate:g})."
                )
            last, seen = terms, seen + len(order[place])
            if parallel.main:
                tracker.log(name, step, terms)
            display.update(len(order[place]), note=f"loss {terms['loss']:.4f}")
            late = checkpoint_seconds is not None and time.perf_counter() - saved_at >= checkpoint_seconds
            if stopping or late or (checkpoint_steps is not None and (step + 1) % checkpoint_steps == 0):
                save(step + 1)
            if stopping:
                raise Interrupted(
                    f"{name} stopped after step {step + 1} of {steps}; saved in {checkpoint.folder}. The same command continues from there."
                )
        if saved_step < steps:
            save(steps)
    module.eval()
    parallel.barrier()
    return FitReport(steps, start, time.perf_counter() - clock, seen, last)


def _step(
    module: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: list[int], step: int, steps: int,
    settings: StageConfig, parallel: Parallel, stop: Callable[[], bool], rates: Mapping[str, Tensor],
) -> Terms:  # fmt: skip
    """One update; returns the terms of the global batch, with the learning rate, the gradient norm and whether anyone asked to stop."""
    factor = rate_factor(step, steps, settings.warmup, settings.schedule)
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * factor
    optimizer.zero_grad(set_to_none=True)
    mine = parallel.share(batch)
    terms: Terms = {}
    if mine:
        weight = len(mine) / len(batch)
        with seeded(settings.seed, step):
            value, terms = loss(mine, step)
            terms = {"loss": float(value.detach()), **terms}
            if math.isfinite(terms["loss"]):
                (value * weight).backward()
    terms = _sum_terms(terms, len(mine) / len(batch), module, parallel, stop())
    if math.isfinite(terms["loss"]):
        norm = nn.utils.clip_grad_norm_([p for p in module.parameters() if p.grad is not None], settings.clip)
        terms |= {"gradient_norm": float(norm), "learning_rate": settings.learning_rate * factor}
        if math.isfinite(terms["gradient_norm"]):
            before = {name: module.get_parameter(name).detach().clone() for name in rates}
            optimizer.step()
            for name, old in before.items():
                parameter = module.get_parameter(name)
                parameter.data.copy_(old + rates[name] * (parameter.data - old))
        else:
            terms["loss"] = float("nan")
    return terms


def _sum_terms(terms: Terms, weight: float, module: nn.Module, parallel: Parallel, stop: bool) -> Terms:
    """Terms of the global batch from the shares; sums the gradients on the way. Only the first process's terms are logged."""
    if parallel.world == 1:
        return {**terms, "stop": float(stop)}
    extra = torch.tensor([terms.get("loss", 0.0) * weight, float(stop)])
    summed = parallel.sum_gradients(module, extra)
    return {**terms, "loss": float(summed[0]), "stop": float(summed[1])}
