"""Several runs side by side: order, waiting, failures, threads and logs, with a program that stands in for `acct`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from acct.errors import AcctError
from acct.reproduce import Job, run_jobs

FAKE = """
import json, os, sys, time
command, *given = sys.argv[1:]
values = dict(one.split("=", 1) for one in given)
with open(values["journal"], "a") as journal:
    journal.write(json.dumps([command, values["direction"], "begin", os.environ["OMP_NUM_THREADS"]]) + "\\n")
time.sleep(float(values.get("seconds", 0)))
print("working on", values["direction"])
if values.get("fails") == command:
    print("ModelError: no weights")
    sys.exit(2)
with open(values["journal"], "a") as journal:
    journal.write(json.dumps([command, values["direction"], "end", ""]) + "\\n")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setattr("acct.reproduce.cores", lambda: 4)
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    return (sys.executable, "-S", str(script))


def journal(tmp_path: Path) -> list[list[str]]:
    return [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]


def job(name: str, *more: str, after: tuple[str, ...] = ()) -> Job:
    return Job(name, (f"direction={name}", *more), after)


def test_a_run_waits_for_the_training_that_it_copies_and_not_for_the_evaluation(tmp_path, program, capsys):
    jobs = [job("copy", after=("base",)), job("base", "seconds=0.2"), job("other")]
    found = run_jobs(jobs, [f"journal={tmp_path / 'journal'}"], tmp_path, 3, program=program)
    assert [one.name for one in found] == ["copy", "base", "other"] and all(one.failed is None for one in found)
    order = [tuple(line[:3]) for line in journal(tmp_path)]
    assert order.index(("train", "base", "end")) < order.index(("train", "copy", "begin")) < order.index(("evaluate", "base", "end"))
    assert {line[3] for line in journal(tmp_path) if line[2] == "begin"} == {"1"}  # 4 cores for 3 at a time
    assert (tmp_path / "base" / "run.log").read_text() == "working on base\n" * 2
    output = capsys.readouterr().out
    assert "[base] working on base\n" in output and "3/3 runs, " in output and "about 0 s left: " in output


def test_one_failure_loses_only_what_is_built_on_it(tmp_path, program, capsys):
    jobs = [
        job("base", "fails=train"),
        job("copy", after=("base",)),
        job("late", "fails=evaluate"),
        job("heir", after=("late",)),
        job("free"),
    ]
    found = {one.name: one.failed for one in run_jobs(jobs, [f"journal={tmp_path / 'journal'}"], tmp_path, 1, program=program)}
    assert found == {
        "base": "acct train ended with 2: ModelError: no weights", "copy": "not started: the training of base failed",
        "late": "acct evaluate ended with 2: ModelError: no weights", "heir": None, "free": None,
    }  # fmt: skip
    assert not any(line[1] == "copy" for line in journal(tmp_path))
    assert "5/5 runs" in capsys.readouterr().out


def test_nothing_finished_is_an_error(tmp_path, program):
    with pytest.raises(AcctError, match="no direction finished:\nbase: acct train ended with 2"):
        run_jobs([job("base", "fails=train")], [f"journal={tmp_path / 'journal'}"], tmp_path, noun="directions", program=program)


def test_a_job_that_waits_for_a_stranger_is_refused(tmp_path):
    with pytest.raises(AcctError, match="copy needs a stage of base, which is not among the runs: copy"):
        run_jobs([job("copy", after=("base",))], [], tmp_path)


def test_an_interrupt_starts_nothing_more(tmp_path, program, monkeypatch):
    started = []

    def interrupted(job, *rest, **more):
        started.append(job.name)
        raise KeyboardInterrupt

    monkeypatch.setattr("acct.reproduce.run_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job(name) for name in ("a", "b", "c")], [], tmp_path, 1, program=program)
    assert started == ["a"]
