"""A run that the system kills: no record is lost or made twice, and the records are those of a run that nobody touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd

from acct.evaluation.run import EvaluationOptions, run_evaluation
from acct.evaluation.scoring import ScoringRules
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import read_records
from tests.evaluation.tiny_run import interface_for, samples, tiny_pair

BATCHES = 7
VICTIM = f"""
import os, signal, sys
from acct.evaluation import run
from tests.evaluation.test_kill import evaluate
score, calls = run.score_batch, 0

def score_then_die(*arguments):
    global calls
    calls += 1
    if calls > {BATCHES}:
        os.kill(os.getpid(), signal.SIGKILL)
    return score(*arguments)

run.score_batch = score_then_die
evaluate(sys.argv[1])
"""


def evaluate(folder: Path | str):
    """All ten methods on three tasks of five examples, in batches of two."""
    pair = tiny_pair("llama")
    options = EvaluationOptions(batch=2, scoring=ScoringRules(max_new_tokens=3), bootstrap=Bootstrap(50), check_examples=2)
    return run_evaluation("tiny", pair, interface_for(pair), samples(), folder, options, show_progress=False)


def frame(folder: Path) -> pd.DataFrame:
    return read_records(folder).frame.sort_values(["task", "method", "example"]).reset_index(drop=True)


def test_kill_minus_nine(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([sys.executable, "-c", VICTIM, str(tmp_path / "a")], env=environment, cwd=tmp_path, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    part = tmp_path / "a" / "parts" / "search_qa.jsonl"
    before = part.read_bytes()
    assert before.count(b"\n") == 2 * BATCHES and not (tmp_path / "a" / "records.parquet").exists()
    report = evaluate(tmp_path / "a")
    assert part.read_bytes().startswith(before), "what was scored stays as it was"
    assert (report.kept, report.new) == (2 * BATCHES, 3 * 5 * 10 - 2 * BATCHES)
    evaluate(tmp_path / "b")
    pd.testing.assert_frame_equal(frame(tmp_path / "a"), frame(tmp_path / "b"), rtol=1e-5)
