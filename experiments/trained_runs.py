"""Runs that Table 1 has trained, evaluated once more under other settings in a results folder of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def acct(*arguments: str) -> None:
    """Run one command of this package; its output is shown."""
    subprocess.run([sys.executable, "-m", "acct.cli.main", *arguments], check=True)


def evaluate_again(direction: str, results: Path, tasks: Sequence[str], methods: Sequence[str], examples: int, *settings: str) -> None:
    """The trained stages of results/micro/<direction> are copied, and `tasks` answered there; answers that are there are kept."""
    own = [f"direction={direction}", f"paths.results={results}", f"paths.data={results}/data"]
    acct("train", *own, f"paths.reuse=results/micro/{direction}")
    acct(
        "evaluate", *own, f"evaluation.examples={examples}", f"evaluation.tasks=[{','.join(tasks)}]",
        f"evaluation.methods=[{','.join(methods)}]", *settings,
    )  # fmt: skip


def tabulate(results: Path) -> None:
    """Tables of such a folder."""
    acct("tables", f"paths.results={results}")
