"""Train and evaluate several directions side by side, then render their table: what `acct reproduce table1` runs.

Each direction is a process of its own with its share of the cores, so that one failure does not lose the others, and a second run
reuses every finished stage and record. Standard output of the workers is kept in <run>/run.log and shown with the direction's name.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from acct.errors import AcctError

log = logging.getLogger(__name__)
COMMANDS = ("train", "evaluate")


@dataclass(frozen=True)
class Outcome:
    """How one direction ended: seconds of each command, and the last line of the failing one."""

    direction: str
    seconds: dict[str, float]
    failed: str | None = None


def run_direction(direction: str, overrides: Sequence[str], folder: Path, threads: int, show: bool = True) -> Outcome:
    """`acct train` and `acct evaluate` of one direction in subprocesses.

    Args:
        overrides: passed on as they are. folder: where run.log is written. threads: CPU threads of the worker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"}
    seconds: dict[str, float] = {}
    with (folder / "run.log").open("a", encoding="utf-8") as record:
        for command in COMMANDS:
            started, last = time.monotonic(), ""
            arguments = [sys.executable, "-m", "acct.cli.main", command, f"direction={direction}", *overrides]
            worker = subprocess.Popen(
                arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", env=environment
            )
            try:
                assert worker.stdout is not None
                for line in worker.stdout:
                    record.write(line)
                    record.flush()
                    last = line.strip() or last
                    if show:
                        print(f"[{direction}] {line}", end="", flush=True)
                worker.wait()
            finally:
                if worker.poll() is None:
                    worker.terminate()
                    worker.wait()
            seconds[command] = time.monotonic() - started
            if worker.returncode:
                return Outcome(direction, seconds, f"acct {command} ended with {worker.returncode}: {last}")
    return Outcome(direction, seconds)


def run_directions(directions: Sequence[str], overrides: Sequence[str], results: Path, jobs: int | None = None) -> list[Outcome]:
    """All directions, `jobs` at a time (null: as many as there are cores), each with its share of the threads.

    Raises:
        AcctError: no direction finished.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = max(1, min(jobs or cores, len(directions), cores))
    done, lock = 0, threading.Lock()
    started = time.monotonic()

    def one(direction: str) -> Outcome:
        nonlocal done
        outcome = run_direction(direction, overrides, results / direction, max(1, cores // jobs))
        with lock:
            done += 1
            elapsed = time.monotonic() - started
            left = elapsed / done * (len(directions) - done)
            state = outcome.failed or ", ".join(f"{command} {value:.0f} s" for command, value in outcome.seconds.items())
            print(f"{done}/{len(directions)} directions, {elapsed:.0f} s, about {left:.0f} s left: {direction}: {state}", flush=True)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(one, directions))
    failures = [f"{outcome.direction}: {outcome.failed}" for outcome in outcomes if outcome.failed]
    for failure in failures:
        log.error("%s (all of it: %s)", failure, results / failure.split(":")[0] / "run.log")
    if len(failures) == len(directions):
        raise AcctError("no direction finished:\n" + "\n".join(failures))
    return outcomes


def phase_table(directions: Sequence[str], results: Path) -> str:
    """Seconds of every phase and peak memory of every direction, read from the runs' provenance."""
    phases: dict[str, dict[str, float]] = {}
    peaks: dict[str, float] = {}
    for direction in directions:
        for path in (results / direction / "provenance.json", results / direction / "evaluation" / "provenance.json"):
            if not path.is_file():
                continue
            record = json.loads(path.read_text(encoding="utf-8"))
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
