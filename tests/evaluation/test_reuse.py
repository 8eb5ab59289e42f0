"""Answers without a transfer are taken from another run where nothing that they depend on differs, and only there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from acct.evaluation.run import EvaluationOptions, run_evaluation
from acct.evaluation.scoring import ScoringRules
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import RECORDS, read_records
from tests.evaluation.tiny_run import interface_for, sample, samples, tiny_pair

METHODS = ("target_full", "acct", "source_full", "no_context", "native_kv")
UNTRAINED = {"target_full", "source_full", "no_context"}
OPTIONS = EvaluationOptions(METHODS, batch=3, scoring=ScoringRules(max_new_tokens=3), bootstrap=Bootstrap(200), check_examples=3)


def evaluate(folder: Path, options: EvaluationOptions = OPTIONS, retention: float = 0.5, given=None, **changes):
    pair = tiny_pair("llama")
    interface = interface_for(pair, retention, seed=int(100 * retention))
    return run_evaluation("tiny", pair, interface, given or samples(), folder, options, show_progress=False, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "evaluation"
    evaluate(folder)
    return folder


def table(folder: Path) -> pd.DataFrame:
    frame = read_records(folder).frame
    return frame.sort_values(["task", "method", "example"]).reset_index(drop=True)


def test_another_retention_takes_what_no_module_touches(finished: Path, tmp_path: Path) -> None:
    report = evaluate(tmp_path / "taken", retention=0.25, variant="plus", reuse=finished)
    assert report.new == 3 * 5 * (len(METHODS) - len(UNTRAINED))
    evaluate(tmp_path / "own", retention=0.25, variant="plus")
    pd.testing.assert_frame_equal(table(tmp_path / "taken"), table(tmp_path / "own"))
    first, again = table(finished), table(tmp_path / "taken")
    for method in METHODS:
        scores = [frame[frame["method"] == method]["mounted_bytes"].tolist() for frame in (first, again)]
        assert (scores[0] == scores[1]) == (method in UNTRAINED), method
    noted = json.loads((tmp_path / "taken" / "provenance.json").read_text())["taken"]
    assert noted == {"run": finished.parent.name, "answers": 45}
    assert evaluate(tmp_path / "taken", retention=0.25, variant="plus", reuse=finished).new == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"options": replace(OPTIONS, scoring=ScoringRules(max_new_tokens=2))},
        {"configuration": {"runtime.dtype": "bfloat16"}},
        {"given": {one.task: replace(one, examples=one.examples[:4]) for one in samples().values()}},
        {"reuse": "nowhere"},
    ],
)
def test_nothing_is_taken_where_anything_differs(finished: Path, tmp_path: Path, changes: dict) -> None:
    report = evaluate(tmp_path, **{"reuse": finished, **changes})
    assert report.new == report.sheet.records.frame.shape[0] > 0


def test_a_task_that_is_the_same_is_taken_beside_one_that_is_not(finished: Path, tmp_path: Path) -> None:
    mixed = {**samples(), "search_qa": sample(lengths=(12, 7, 15))}
    report = evaluate(tmp_path, given=mixed, reuse=finished)
    assert report.new == 3 * len(METHODS) + 2 * 5 * (len(METHODS) - len(UNTRAINED))


def test_damaged_records_are_left_alone(finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in finished.iterdir():
        if file.is_file():
            (other / file.name).write_bytes(b"broken" if file.name == RECORDS else file.read_bytes())
    assert evaluate(tmp_path / "run", reuse=other).new == 3 * 5 * len(METHODS)
    assert "no answers are taken from" in caplog.text
