"""W&B and TensorBoard for real: what they wrote is read back from their files; the dashboard is built with its package."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from acct.cli.dashboard import dashboard
from acct.cli.evaluation import evaluate_direction
from acct.config.root import compose
from acct.config.runtime import TrackerConfig
from acct.errors import ConfigError
from acct.evaluation.diagnosis import diagnose
from acct.tracking import RunLabel, make_tracker, open_tracker
from acct.tracking.dashboard import panels, specification, workspace
from acct.tracking.outcomes import track_diagnosis, track_evaluation
from acct.tracking.wandb_sink import logged_in, resolved_mode
from acct.training.run import train
from tests.training.conftest import finished, tiny  # noqa: F401 (a fixture)
from tests.wandb_file import OfflineRun


@pytest.fixture(autouse=True)
def no_login(tmp_path, monkeypatch):
    """No key, no netrc, and W&B's own folders below the test's."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-own"))


def test_the_mode_follows_the_login(tmp_path, monkeypatch):
    assert not logged_in() and resolved_mode("auto") == "offline" and resolved_mode("online") == "online"
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine other.host login user password key\n")
    assert resolved_mode("auto") == "offline"
    (home / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    assert resolved_mode("auto") == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert resolved_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert resolved_mode("auto") == "online" and resolved_mode("offline") == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert resolved_mode("auto") == resolved_mode("online") == "disabled"


def test_a_training_is_an_offline_run_with_everything(tmp_path):
    config = tiny(tmp_path, "tracker=wandb", "tracker.tags=[mine]", "tracker.system_seconds=0.2", "tracker.weights=true")
    found = train(config)
    read = OfflineRun(tmp_path / "tiny/tiny_qwen3")
    run = read.run
    assert (run.display_name, run.run_group, run.job_type, run.project) == ("tiny_qwen3 train", "tiny_qwen3", "train", "acct")
    assert set(run.tags) == {"tiny", "retention 0.25", "seed 0", "mine"}
    assert read.config["budget"]["retention"] == 0.25 and read.config["direction"]["name"] == "tiny_qwen3"
    lines = [json.loads(line) for line in (tmp_path / "tiny/tiny_qwen3/metrics.jsonl").read_text().splitlines()]
    for stage in ("cartographer", "allocator", "compiler"):
        kept = [row["loss"] for row in lines if row["stage"] == stage]
        seen = [row for row in read.history if f"{stage}/loss" in row]
        assert kept and [row[f"{stage}/loss"] for row in seen] == kept and [row[f"{stage}/step"] for row in seen] == list(range(len(kept)))
    assert any("compiler_held_out/compiler_value" in row for row in read.history)
    assert {metric.glob_name or metric.name for metric in read.of("metric")} >= {"compiler/*", "compiler/step"}
    artifacts = {one.type: one for one in read.of("artifact")}
    assert set(artifacts) == {"cartographer", "allocator", "selections", "compiler"}
    for kind, one in artifacts.items():
        assert json.loads(one.metadata)["digest"] == found[kind].digest and one.name == f"tiny_qwen3-{kind}"
        assert {entry.path for entry in one.manifest.contents} == {"card.json", found[kind].card["file"]}
    assert read.of("stats"), "system metrics are on"


def copied(finished, tmp_path):  # noqa: F811
    """The finished run in a folder of the test's own."""
    shutil.copytree(finished.paths.results, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_an_evaluation_shows_its_table_and_the_capacities(finished, tmp_path):  # noqa: F811
    overrides = ("tracker=wandb", "evaluation.tasks=[boolq]", "evaluation.methods=[target_full,acct,source_full]")
    config = tiny(copied(finished, tmp_path), *overrides)
    report = evaluate_direction(config)
    track_evaluation(config, report)
    track_evaluation(config, report)  # a second one replaces the first one's line
    folder = tmp_path / "tiny/tiny_qwen3"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (line,) = [row for row in lines if row["stage"] == "evaluation"]
    shown = report.sheet.figure("tiny_qwen3", "boolq", "acct")
    assert shown is not None and line["boolq/acct"] == shown.figure.value
    first = sorted(folder.glob("wandb/offline-run-*"))[0]
    for other in sorted(folder.glob("wandb/offline-run-*"))[1:]:
        other.rename(folder / other.name)
    read = OfflineRun(folder)
    assert read.path.parent == first and read.run.job_type == "evaluate" and read.run.run_group == "tiny_qwen3"
    (metrics,) = [row for row in read.history if "evaluation/boolq/acct" in row]
    assert metrics["evaluation/boolq/acct"] == shown.figure.value
    table = json.loads(read.media("evaluation/figures").read_text())
    rows = [dict(zip(table["columns"], row)) for row in table["data"]]
    assert [row["method"] for row in rows] == ["Target Full", "ACCT", "Source Full"]
    acct = rows[1]
    assert (acct["value"], acct["lower"], acct["examples"]) == (shown.figure.value, shown.figure.lower, shown.examples)
    assert read.media("evaluation/capacities").read_bytes().startswith(b"\x89PNG")


def test_a_diagnosis_shows_its_charts(finished, tmp_path):  # noqa: F811
    config = tiny(copied(finished, tmp_path), "diagnosis.examples=2", "tracker=tensorboard")
    diagnose(config)
    track_diagnosis(config)
    tags = accumulator(tmp_path / "tiny/tiny_qwen3/tensorboard/diagnose").Tags()["images"]
    assert {"diagnosis/capacities", "diagnosis/bridge_r2", "diagnosis/rank_correlation", "diagnosis/attention_kl"} <= set(tags)


def accumulator(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_tensorboard_writes_what_it_is_given(tmp_path):
    from PIL import Image

    Image.new("RGB", (3, 2), (255, 0, 0)).save(tmp_path / "red.png")
    label = RunLabel("run", "a_to_b", "train", ("micro",))
    with make_tracker(TrackerConfig(kind="tensorboard"), tmp_path, label, {"a": 1}) as tracker:
        for step in range(3):
            tracker.log("compiler", step, {"loss": 1.0 / (step + 1)})
        tracker.table("evaluation/figures", ["task", "value"], [["BoolQ", 50.0], ["RACE", float("nan")]])
        tracker.image("evaluation/capacities", tmp_path / "red.png")
        tracker.artifact("run-compiler", "compiler", [tmp_path / "red.png"], {"digest": "abc"})
    events = accumulator(tmp_path / "tensorboard/train")
    assert [(one.step, one.value) for one in events.Scalars("compiler/loss")] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert texts["evaluation/figures/text_summary"] == "| task | value |\n| --- | --- |\n| BoolQ | 50 |\n| RACE | – |"
    assert '"digest": "abc"' in texts["artifacts/run-compiler/text_summary"] and '"a": 1' in texts["configuration/text_summary"]
    (image,) = events.Images("evaluation/capacities")
    assert (image.width, image.height) == (3, 2)


def test_online_without_a_network_falls_back_to_offline(tmp_path, monkeypatch, caplog):
    import wandb

    real, modes = wandb.init, []

    def unreachable(*arguments, **options):
        modes.append(options["mode"])
        if options["mode"] == "online":
            raise wandb.errors.CommError("no route to host")
        return real(*arguments, **options)

    monkeypatch.setattr(wandb, "init", unreachable)
    config = compose([f"paths.results={tmp_path}", "tracker=wandb", "tracker.mode=online"])
    with open_tracker(config, "train") as tracker:
        tracker.log("compiler", 0, {"loss": 1.0})
    assert modes == ["online", "offline"] and "no route to host" in caplog.text
    assert OfflineRun(tmp_path / "micro/micro_qwen3_small_to_large").history == [{"compiler/loss": 1.0, "compiler/step": 0}]


def test_the_panels_show_metrics_that_a_training_writes(finished):  # noqa: F811
    lines = [json.loads(line) for line in (Path(finished.paths.run) / "metrics.jsonl").read_text().splitlines()]
    written = {f"{row['stage']}/{name}" for row in lines for name in row} | {f"{row['stage']}/step" for row in lines}
    sections = {section.name: section.panels for section in panels(["boolq"])}
    shown = [metric for name in ("Training", "Held out") for panel in sections[name] for metric in (*panel.metrics, panel.x) if metric]
    assert set(shown) - written == set()
    assert any("evaluation/boolq/acct" in panel.metrics for panel in sections["Evaluation"])


def test_the_workspace_has_the_panels_and_the_groups():
    model = json.loads(workspace(["boolq", "race"], "team", "acct")._to_model().model_dump_json())
    assert (model["entity"], model["project"], model["display_name"]) == ("team", "acct", "ACCT")
    found = model["spec"]["section"]["panel_bank_config"]["sections"]
    expected = panels(["boolq", "race"])
    assert [one["name"] for one in found] == [one.name for one in expected]
    for built, own in zip(found, expected):
        assert len(built["panels"]) == len(own.panels)
        for panel, wanted in zip(built["panels"], own.panels):
            if wanted.kind == "line":
                assert (panel["config"]["x_axis"], panel["config"]["metrics"]) == (wanted.x, list(wanted.metrics))
            if wanted.kind == "bar":
                assert panel["config"]["metrics"] == list(wanted.metrics)
            if wanted.kind == "images":
                assert panel["config"]["media_keys"] == list(wanted.metrics)
    text = json.dumps(model)
    assert '{"section": "run", "name": "group"}, {"section": "run", "name": "jobType"}' in text and "evaluation/figures" in text


def test_the_dashboard_command_offline_and_online(tmp_path, monkeypatch):
    config = compose([f"paths.results={tmp_path}", "tracker=wandb", "tracker.entity=team"])
    lines = dashboard(config)
    assert json.loads((tmp_path / "micro/dashboard.json").read_text()) == json.loads(json.dumps(specification(config.evaluation.tasks)))
    assert len(lines) == 2 and "wandb login" in lines[1]
    saved = []

    def save(self):
        saved.append((self.entity, self.project))

    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setattr("wandb_workspaces.workspaces.Workspace.save", save)
    assert "published as the workspace 'ACCT' of team/acct" in dashboard(config)[1] and saved == [("team", "acct")]

    def refuse(self):
        raise ValueError("permission denied")

    monkeypatch.setattr("wandb_workspaces.workspaces.Workspace.save", refuse)
    with pytest.raises(ConfigError, match=r"refused the dashboard of project 'acct' \(ValueError: permission denied\)"):
        dashboard(config)
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    with pytest.raises(ConfigError, match=r"pip install 'acct\[dashboard\]'"):
        dashboard(config)
