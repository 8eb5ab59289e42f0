"""Train and evaluate several runs side by side: what `acct reproduce` does before it renders tables.

Each run is a process of its own with its share of the cores, so that one failure does not lose the others, and a second call reuses every
finished stage and record. Standard output of the workers is kept in <run>/run.log and shown with the run's name.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from acct.errors import AcctError
from acct.json_files import read_json

log = logging.getLogger(__name__)
COMMANDS = ("train", "evaluate")
PROGRAM = (sys.executable, "-m", "acct.cli.main")


@dataclass(frozen=True)
class Job:
    """One run folder to fill.

    Attributes:
        name: of the run folder, and what its lines begin with. overrides: what distinguishes it, the direction included.
        after: runs whose training has to be finished first, because this one copies a stage of theirs.
    """

    name: str
    overrides: tuple[str, ...]
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How one run ended: seconds of each command, and the last line of the failing one."""

    name: str
    seconds: dict[str, float]
    failed: str | None = None


def run_job(
    job: Job, overrides: Sequence[str], folder: Path, threads: int, show: bool = True,
    ended: Callable[[str], None] = lambda command: None, program: Sequence[str] = PROGRAM,
) -> Outcome:  # fmt: skip
    """`acct train` and `acct evaluate` of one run in subprocesses.

    Args:
        overrides: of all runs, passed on as they are; the job's own come last. folder: where run.log is written. threads: CPU threads of
            the worker. ended: called with the name of each command that succeeded. program: what is called.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"}
    seconds: dict[str, float] = {}
    with (folder / "run.log").open("a", encoding="utf-8") as record:
        for command in COMMANDS:
            started, last = time.monotonic(), ""
            arguments = [*program, command, *overrides, *job.overrides]
            with subprocess.Popen(
                arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", env=environment
            ) as worker:
                try:
                    assert worker.stdout is not None
                    for line in worker.stdout:
                        record.write(line)
                        record.flush()
                        last = line.strip() or last
                        if show:
                            print(f"[{job.name}] {line}", end="", flush=True)
                    worker.wait()
                finally:
                    if worker.poll() is None:
                        worker.terminate()
            seconds[command] = time.monotonic() - started
            if worker.returncode:
                return Outcome(job.name, seconds, f"acct {command} ended with {worker.returncode}: {last}")
            ended(command)
    return Outcome(job.name, seconds)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Schedule:
    """Which job a free worker takes next: the first whose predecessors have been trained. Shared by the workers' threads.

    Raises:
        AcctError: a job waits for one that is not among them.
    """

    def __init__(self, jobs: Sequence[Job]):
        names = {job.name for job in jobs}
        for job in jobs:
            for name in set(job.after) - names:
                raise AcctError(f"{job.name} needs a stage of {name}, which is not among the runs: {', '.join(sorted(names))}.")
        self.pending = list(jobs)
        self.trained: dict[str, bool] = {}
        self.changed = threading.Condition()

    def next(self) -> tuple[Job, str | None] | None:
        """The next job, and why it cannot run (None: it can); None when nothing is left. Waits while all that is left has to wait."""
        with self.changed:
            while self.pending:
                for job in self.pending:
                    lost = [name for name in job.after if self.trained.get(name) is False]
                    if lost or all(name in self.trained for name in job.after):
                        self.pending.remove(job)
                        return job, f"not started: the training of {lost[0]} failed" if lost else None
                self.changed.wait()
            return None

    def note(self, name: str, trained: bool) -> None:
        """A job's training has ended; the first word counts."""
        with self.changed:
            self.trained.setdefault(name, trained)
            self.changed.notify_all()

    def stop(self) -> None:
        """Give out nothing more."""
        with self.changed:
            self.pending.clear()
            self.changed.notify_all()


def run_jobs(
    jobs: Sequence[Job], overrides: Sequence[str], results: Path, limit: int | None = None, noun: str = "runs",
    program: Sequence[str] = PROGRAM,
) -> list[Outcome]:  # fmt: skip
    """All jobs, `limit` at a time (null: as many as there are cores), each with its share of the threads.

    Args:
        overrides: of every job. results: <results>/<scale>, where run folders lie. noun: what progress lines count.
    Returns:
        Outcomes in the order of the jobs.
    Raises:
        AcctError: no job finished.
    """
    available = cores()
    limit = max(1, min(limit or available, len(jobs), available))
    schedule, outcomes, lock = Schedule(jobs), {}, threading.Lock()
    started = time.monotonic()

    def finish(outcome: Outcome) -> None:
        with lock:
            outcomes[outcome.name] = outcome
            done, elapsed = len(outcomes), time.monotonic() - started
            left = elapsed / done * (len(jobs) - done)
            state = outcome.failed or ", ".join(f"{command} {value:.0f} s" for command, value in outcome.seconds.items())
            print(f"{done}/{len(jobs)} {noun}, {elapsed:.0f} s, about {left:.0f} s left: {outcome.name}: {state}", flush=True)

    def work() -> None:
        while (found := schedule.next()) is not None:
            job, lost = found
            outcome = Outcome(job.name, {}, lost)
            try:
                if lost is None:
                    outcome = run_job(
                        job, overrides, results / job.name, max(1, available // limit), program=program,
                        ended=lambda command, name=job.name: schedule.note(name, True) if command == "train" else None,
                    )  # fmt: skip
            finally:
                schedule.note(job.name, False)  # unless its training is already known to have succeeded
            finish(outcome)

    with ThreadPoolExecutor(limit) as pool:
        workers = [pool.submit(work) for _ in range(limit)]
        try:
            for worker in workers:
                worker.result()
        finally:
            schedule.stop()
    ordered = [outcomes[job.name] for job in jobs]
    failures = [f"{outcome.name}: {outcome.failed}" for outcome in ordered if outcome.failed]
    for failure in failures:
        log.error("%s (all of it: %s)", failure, results / failure.split(":")[0] / "run.log")
    if len(failures) == len(jobs):
        raise AcctError(f"no {noun.removesuffix('s')} finished:\n" + "\n".join(failures))
    return ordered


def phase_table(directions: Sequence[str], results: Path) -> str:
    """Seconds of every phase and peak memory of every direction, read from the runs' provenance."""
    phases: dict[str, dict[str, float]] = {}
    peaks: dict[str, float] = {}
    for direction in directions:
        for path in (results / direction / "provenance.json", results / direction / "evaluation" / "provenance.json"):
            if not path.is_file():
                continue
            record = read_json(path, "Remove it: the run writes it again.")
            for phase, value in record.get("phases_seconds", {}).items():
                phases.setdefault(phase, {})[direction] = float(value)
            peaks[direction] = max(peaks.get(direction, 0.0), float(record.get("peak_memory_bytes", 0)) / 2**30)
    width = max(map(len, [*phases, "peak memory (GiB)"]), default=10)
    lines = ["seconds by phase".ljust(width) + "  " + "  ".join(directions)]
    for phase, values in phases.items():
        cells = [(f"{values[d]:.1f}" if d in values else "-").rjust(len(d)) for d in directions]
        lines.append(phase.ljust(width) + "  " + "  ".join(cells))
    lines.append("peak memory (GiB)".ljust(width) + "  " + "  ".join(f"{peaks.get(d, 0.0):.2f}".rjust(len(d)) for d in directions))
    return "\n".join(lines)
