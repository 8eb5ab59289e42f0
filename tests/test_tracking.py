"""Metrics file, progress line, provenance."""

from __future__ import annotations

import io
import json
import sys

import pytest

from acct.config.runtime import TrackerConfig
from acct.errors import ArtifactError, ConfigError
from acct.progress import Progress, clock_text, progress
from acct.provenance import Provenance, write_config
from acct.tracking import RunLabel, Sink, Tracker, make_tracker
from acct.training.run import train
from tests.training.conftest import tiny

LABEL = RunLabel("run", "a_to_b", "train", ("micro",))


def read(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_metrics_are_json_lines_and_nan_becomes_null(tmp_path):
    with make_tracker(TrackerConfig(), tmp_path, LABEL, {}) as tracker:
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


class Recorder(Sink):
    """Keeps what it is given; fails from the n-th call on."""

    name = "recorder"

    def __init__(self, fails_at: int | None = None):
        self.calls, self.fails_at, self.closed = [], fails_at, []

    def _take(self, *call):
        self.calls.append(call)
        if self.fails_at is not None and len(self.calls) >= self.fails_at:
            raise ConnectionError("the network is gone")

    def log(self, stage, step, metrics):
        self._take("log", stage, step, dict(metrics))

    def table(self, key, columns, rows):
        self._take("table", key, list(columns), [list(row) for row in rows])

    def image(self, key, path):
        self._take("image", key, path)

    def artifact(self, name, kind, files, metadata):
        self._take("artifact", name, kind, list(files), dict(metadata))

    def close(self, failed=False):
        self.closed.append(failed)
        if self.fails_at is not None:
            raise ConnectionError("still gone")


def test_sinks_get_stage_and_step_and_no_nan(tmp_path):
    sink = Recorder()
    with Tracker(tmp_path, [sink]) as tracker:
        tracker.log("a", 7, {"loss": 1.0, "bad": float("nan")})
        tracker.table("b/t", ["x"], [[float("nan")], [1.0], ["w"]])
    assert sink.calls == [("log", "a", 7, {"loss": 1.0}), ("table", "b/t", ["x"], [[None], [1.0], ["w"]])] and sink.closed == [False]


def test_a_sink_that_fails_is_named_once_and_dropped(tmp_path, caplog):
    bad, good = Recorder(fails_at=2), Recorder()
    with Tracker(tmp_path, [bad, good]) as tracker:
        for step in range(4):
            tracker.log("a", step, {"loss": 1.0})
        tracker.image("a/i", tmp_path)
    assert len(bad.calls) == 2 and bad.closed == [True] and len(good.calls) == 5 and good.closed == [False]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "recorder failed (ConnectionError: the network is gone)" in message and "tracker.kind=none" in message
    assert [row["step"] for row in read(tmp_path)] == [0, 1, 2, 3]


def test_a_sink_that_fails_while_closing_does_not_hide_the_end(tmp_path, caplog):
    with Tracker(tmp_path, [Recorder(fails_at=99)]):
        pass
    with pytest.raises(ZeroDivisionError), Tracker(tmp_path, [Recorder(fails_at=99)]):
        raise ZeroDivisionError
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["recorder failed"] * 2


def test_a_sink_that_cannot_start_is_left_out(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("acct.tracking.tracker._sinks", lambda *_: 1 / 0)
    with make_tracker(TrackerConfig(kind="wandb"), tmp_path, LABEL, {}) as tracker:
        tracker.log("a", 0, {"loss": 1.0})
    assert len(read(tmp_path)) == 1 and "tracker.kind=wandb failed (ZeroDivisionError" in caplog.text


def test_a_missing_package_is_a_message(tmp_path, monkeypatch):
    for kind, module in (("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=f"tracker.kind={kind} needs the package {kind}: pip install 'acct\\[track\\]'"):
            make_tracker(TrackerConfig(kind=kind), tmp_path, LABEL, {})


def test_training_goes_on_when_the_sink_is_gone(tmp_path, monkeypatch):
    """The whole tiny training with a sink that raises at its third call ends with all artifacts and all metrics."""
    sink = Recorder(fails_at=3)
    monkeypatch.setattr("acct.tracking.tracker._sinks", lambda *_: [sink])
    found = train(tiny(tmp_path))
    stages = {row["stage"] for row in read(tmp_path / "tiny/tiny_qwen3")}
    assert set(found) == {"cartographer", "allocator", "selections", "compiler"} and len(sink.calls) == 3
    assert stages >= {"cartographer", "allocator", "compiler", "compiler_held_out", "bridge"}


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
