"""Sweeps: every job runs, failures are all named, under the basic, joblib and submitit launchers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from acct.cli import commands
from acct.cli.main import main
from acct.cli.plan import directions_of
from acct.cli.sweep import fixed_overrides, of_the_scale
from acct.errors import ConfigError

SIX_AND_MORE = len(directions_of("micro")) * 3


def plugin(name: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec("hydra_plugins") is None or importlib.util.find_spec(f"hydra_plugins.{name}") is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed: pip install -e '.[sweep]'")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fake(monkeypatch, place: Path) -> None:
    """`acct train` that leaves a file, refuses retention 0.5, and divides by zero at 0.1."""
    folder = str(place)

    def train(config):
        from pathlib import Path

        from acct.errors import AcctError

        Path(folder, Path(config.paths.run).name).write_text(f"{config.direction.name} {config.budget.retention}")
        if config.budget.retention == 0.5:
            raise AcctError("no memory")
        if config.budget.retention == 0.1:
            raise ZeroDivisionError("ours")

    monkeypatch.setattr(commands, "train", train)


def test_all_directions_of_the_scale_and_all_budgets(monkeypatch, tmp_path):
    (seen := tmp_path / "seen").mkdir()
    fake(monkeypatch, seen)
    assert main(["train", "-m", "budget.retention=1.0,0.25,0.125", "direction=glob(*)"]) == 0
    names = {f"{direction}{suffix}" for direction in directions_of("micro") for suffix in ("", "-r1", "-r0.125")}
    assert {path.name for path in seen.iterdir()} == names and len(names) == SIX_AND_MORE


def check_failures(seen: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two of four jobs failed, each in its own way; the others are there."""
    assert {path.name for path in seen.iterdir()} == {"tiny_qwen3", "tiny_qwen3-r1", "tiny_qwen3-r0.5", "tiny_qwen3-r0.1"}
    out, error = capfd.readouterr()
    assert "sweep: 2 of 4 jobs finished (outcomes in " in out
    assert "2 of the sweep's jobs failed" in error
    assert "budget.retention=0.5: AcctError: no memory" in error and "budget.retention=0.1: ZeroDivisionError: ours" in error
    (folder,) = Path("results/multirun").glob("outcomes-*")
    assert [json.loads((folder / f"{n}.json").read_text())["failed"] is None for n in range(4)] == [False, True, False, True]


SWEEP = ("train", "-m", "debug=tiny", "budget.retention=0.5,1.0,0.1,0.25")


def test_a_failure_does_not_lose_the_others(monkeypatch, tmp_path, capfd):
    (seen := tmp_path / "seen").mkdir()
    fake(monkeypatch, seen)
    assert main(list(SWEEP)) == 2
    check_failures(seen, capfd)


@plugin("hydra_joblib_launcher")
def test_joblib(monkeypatch, tmp_path, capfd):
    (seen := tmp_path / "seen").mkdir()
    fake(monkeypatch, seen)
    assert main([*SWEEP, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]) == 2
    check_failures(seen, capfd)


@plugin("hydra_submitit_launcher")
def test_submitit_in_local_mode(monkeypatch, tmp_path, capfd):
    (seen := tmp_path / "seen").mkdir()
    fake(monkeypatch, seen)
    assert main([*SWEEP, "hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5"]) == 2
    check_failures(seen, capfd)


@plugin("hydra_submitit_launcher")
def test_the_slurm_example_composes(capsys):
    assert main(["train", "--cfg", "hydra", "-p", "hydra.launcher", "hydra/launcher=slurm", "hydra.launcher.partition=mine"]) == 0
    shown = capsys.readouterr().out
    assert "SlurmLauncher" in shown and "partition: mine" in shown and "array_parallelism: 6" in shown


def test_a_wrong_setting_fails_before_anything_runs(monkeypatch, tmp_path, capsys):
    (seen := tmp_path / "seen").mkdir()
    fake(monkeypatch, seen)
    assert main(["train", "-m", "direction=micro_qwen3_small_to_large,micro_qwen9"]) == 2
    assert main(["train", "-m", "budgt.retention=1.0,0.5"]) == 2
    assert main(["train", "-m", "direction=glob(qwen*)"]) == 2
    assert not list(seen.iterdir())
    error = capsys.readouterr().err
    assert "unknown direction 'micro_qwen9'" in error and "unknown setting 'budgt.retention'" in error
    assert "direction=glob(qwen*) fits no direction of scale=micro" in error


def test_an_interrupt_ends_the_sweep(monkeypatch):
    seen = []

    def stop(config):
        seen.append(config.budget.retention)
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "train", stop)
    assert main(list(SWEEP)) == 130 and seen == [0.5]


def test_globs_are_kept_to_the_scale():
    assert of_the_scale(["direction=glob(micro_qwen3*)", "x=1"], "micro") == [
        "direction=micro_qwen3_large_to_small,micro_qwen3_small_to_large", "x=1",
    ]  # fmt: skip
    assert of_the_scale(["direction=glob('*_4b')"], "paper")[0].startswith("direction=qwen3_06b_to_4b,")
    assert of_the_scale(["direction=glob([a*,b*], exclude=c)"], "micro") == ["direction=glob([a*,b*], exclude=c)"]  # Hydra's own business
    with pytest.raises(ConfigError, match="fits no direction of scale=tiny"):
        of_the_scale(["direction=glob(micro*)"], "tiny")


def test_fixed_overrides_are_those_of_every_job():
    given = ["-m", "scale=paper", "budget.retention=1.0,0.5", "direction=glob(*)", "hydra/launcher=joblib", "paths.results=x"]
    assert fixed_overrides(given) == ["scale=paper", "paths.results=x"]
