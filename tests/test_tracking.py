"""Metrics file, progress line, provenance."""

from __future__ import annotations

import io
import json

import pytest

from acct.errors import ArtifactError
from acct.progress import Progress, clock_text, progress
from acct.provenance import Provenance, write_config
from acct.tracking import Tracker, make_tracker


def read(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_metrics_are_json_lines_and_nan_becomes_null(tmp_path):
    with make_tracker("none", tmp_path, "acct", "offline", "run", {}) as tracker:
        tracker.log("compiler", 0, {"loss": 1.5, "value": float("nan")})
        tracker.log("compiler", 1, {"loss": 1.0, "value": float("inf")})
    assert [(row["stage"], row["step"], row["loss"], row["value"]) for row in read(tmp_path)] == [
        ("compiler", 0, 1.5, None), ("compiler", 1, 1.0, None),
    ]  # fmt: skip


def test_rewind_forgets_later_steps_of_one_stage_and_a_torn_line(tmp_path):
    tracker = Tracker(tmp_path)
    for stage in ("a", "b"):
        for step in range(4):
            tracker.log(stage, step, {"loss": step})
    with tracker.path.open("a") as file:
        file.write('{"stage": "b", "st')
    tracker.rewind("b", 2)
    assert [(row["stage"], row["step"]) for row in read(tmp_path)] == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("b", 1)]


def test_a_metrics_file_that_cannot_be_written_is_named(tmp_path):
    tracker = Tracker(tmp_path)
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(ArtifactError, match=r"metrics\.jsonl.*checkpoint is kept"):
        tracker.log("a", 0, {"loss": 1.0})


def test_sinks_get_named_metrics_with_a_growing_step(tmp_path):
    class Sink:
        def __init__(self):
            self.rows, self.closed = [], False

        def log(self, metrics, step):
            self.rows.append((dict(metrics), step))

        def close(self):
            self.closed = True

    sink = Sink()
    with Tracker(tmp_path, [sink]) as tracker:
        tracker.log("a", 7, {"loss": 1.0, "bad": float("nan")})
        tracker.log("b", 0, {"loss": 2.0})
    assert sink.rows == [({"a/loss": 1.0}, 1), ({"b/loss": 2.0}, 2)] and sink.closed


def test_wandb_writes_an_offline_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with make_tracker("wandb", tmp_path, "acct", "offline", "run", {"a": 1}) as tracker:
        tracker.log("a", 0, {"loss": 1.0})
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_progress_writes_rate_and_time_left_without_a_terminal():
    stream = io.StringIO()
    with Progress("stage", 10, done=4, every=0.0, stream=stream) as display:
        display.update(3, note="loss 0.5")
        display.update(3)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("stage: 7/10 examples, ") and "/s" in lines[0] and "left, loss 0.5" in lines[0]
    assert lines[-1].startswith("stage: 10/10") and "\r" not in stream.getvalue()


def test_progress_is_quiet_between_lines_and_when_disabled():
    stream = io.StringIO()
    assert list(progress(range(5), "items", every=1e9, stream=stream)) == list(range(5))
    assert len(stream.getvalue().splitlines()) == 1
    stream = io.StringIO()
    with Progress("stage", 2, stream=stream, enabled=False, every=0.0) as display:
        display.update(2)
    assert stream.getvalue() == ""


def test_clock_text():
    assert [clock_text(s) for s in (0, 59.6, 61, 3723)] == ["0:00", "1:00", "1:01", "1:02:03"]


def test_provenance_adds_phases_over_runs(tmp_path):
    first = Provenance(tmp_path)
    with first.phase("train"):
        pass
    with pytest.raises(ZeroDivisionError), first.phase("train"):
        raise ZeroDivisionError
    first.record["phases_seconds"]["train"] = 2.0
    first.write()
    second = Provenance(tmp_path)
    with second.phase("train"):
        pass
    second.note({"seeds": {"compiler": 0}})
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert record["phases_seconds"]["train"] >= 2.0 and record["seeds"] == {"compiler": 0}
    assert record["peak_memory_bytes"] > 0 and record["versions"]["torch"] and record["threads"] >= 1 and "dirty" in record


def test_config_is_written_as_yaml(tmp_path):
    import yaml

    write_config(tmp_path, {"b": 1, "a": {"c": [1, 2]}})
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"b": 1, "a": {"c": [1, 2]}}
