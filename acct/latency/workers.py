"""One process for each direction, as in the paper's runs (paper K): a worker that fails is reported, the others are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from acct.latency.placement import Worker

PROGRAM = (sys.executable, "-m", "acct.cli.main", "latency")


@dataclass(frozen=True)
class Ended:
    """How a worker ended.

    Attributes:
        failed: None, or why. log: everything it wrote.
    """

    direction: str
    seconds: float
    log: Path
    failed: str | None = None


def run_worker(
    worker: Worker, overrides: Sequence[str], folder: Path, timeout_seconds: float | None = None, program: Sequence[str] = PROGRAM
) -> Ended:
    """Run one worker to its end.

    Args:
        overrides: of all workers; its direction and placement come last. folder: where <direction>.log is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{worker.direction}.log"
    arguments = [*program, *overrides, f"direction={worker.direction}", *worker.overrides]
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as record:
        process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace",
            env=os.environ | worker.environment,
        )  # fmt: skip
        assert process.stdout is not None
        copying = threading.Thread(target=_copy, args=(process.stdout, record, worker.direction))
        copying.start()
        code: int | None = None
        try:
            code = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            pass  # code stays None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            copying.join()
            process.stdout.close()
    failed = f"stopped after latency.timeout_seconds={timeout_seconds:g}" if code is None else None
    if code:
        failed = f"ended with {code}: {_last_line(log)}"
    return Ended(worker.direction, time.monotonic() - started, log, failed)


def run_workers(
    workers: Sequence[Worker],
    overrides: Sequence[str],
    folder: Path,
    timeout_seconds: float | None = None,
    program: Sequence[str] = PROGRAM,
) -> list[Ended]:
    """All workers: side by side where each has GPUs of its own, one after the other on the CPU. Outcomes in their order."""
    limit = len(workers) if all(worker.devices for worker in workers) else 1
    lock = threading.Lock()

    def run(worker: Worker) -> Ended:
        ended = run_worker(worker, overrides, folder, timeout_seconds, program)
        with lock:
            print(f"{ended.direction}: {ended.failed or 'timed'} ({ended.seconds:.0f} s, {ended.log})", file=sys.stderr, flush=True)
        return ended

    with ThreadPoolExecutor(max(limit, 1)) as pool:
        return list(pool.map(run, workers))


def _copy(lines: Iterable[str], record: TextIO, direction: str) -> None:
    """Every line to the log, and to standard error behind the direction's name, as it comes."""
    for line in lines:
        record.write(line)
        record.flush()
        print(f"[{direction}] {line}", end="", file=sys.stderr, flush=True)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"
