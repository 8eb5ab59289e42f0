"""The command line: a user's mistake is one message and exit code 2, a sweep runs every job, nothing of Hydra leaks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from acct.cli import commands
from acct.cli.main import main, quoted
from acct.errors import AcctError, InputError
from acct.training.loop import Interrupted

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "budgt.retention=1"], "unknown setting 'budgt.retention'. Did you mean budget.retention"),
        (["train", "budget.tail=3"], "Did you mean budget.tail_tokens"),
        (["train", "budget.retention=4"], "budget.retention must lie in (0, 1], got 4"),
        (["train", "budget.retention=abc"], "setting budget.retention"),
        (["train", "budget.retention"], "budget.retention"),
        (["train", "direction=micro_qwen4"], "unknown direction 'micro_qwen4'. Known: "),
        (["train", "experiment=table3_randm"], "table3_random"),
        (["train", "directio=tiny_qwen3"], "unknown setting 'directio'. Did you mean direction"),
        (["trian"], "unknown command 'trian'. Known: "),
        (["generate", "debug=tiny", "query=who"], "context is empty"),
        (["generate", "debug=tiny", "context=@nowhere.txt", "query=who"], "context=@nowhere.txt cannot be read"),
        (["reproduce", "table9"], "unknown table 'table9'"),
        (["reproduce", "table1", "jobs=0"], "jobs must be a whole number"),
        (["train", "direction=tiny_qwen3", "direction.source=nowhere"], "ModelError: "),
    ],
)
def test_a_mistake_is_one_message_without_a_traceback(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and "HYDRA_FULL_ERROR" not in error


def test_a_missing_stage_is_named(capsys):
    assert main(["train", "debug=tiny", "stage=compiler"]) == 2
    assert "has no finished cartographer" in capsys.readouterr().err


def test_help_and_choices(capsys):
    assert main(["--help"]) == 0
    assert main([]) == 2
    output = capsys.readouterr().out
    assert all(name in output for name in ("train", "evaluate", "generate", "check", "tables", "reproduce"))
    assert main(["choices"]) == 0
    assert "supervision.straddle_power" in capsys.readouterr().out


def test_an_interrupt_prints_its_message_and_exits_with_130(monkeypatch, capsys):
    def stop(config):
        raise Interrupted("compiler stopped after step 3 of 9; saved.")

    monkeypatch.setattr(commands, "train", stop)
    assert main(["train", "debug=tiny"]) == 130
    assert "stopped after step 3 of 9" in capsys.readouterr().err


def test_a_full_disk_is_a_message(monkeypatch, capsys):
    def full(config):
        raise OSError(errno.ENOSPC, "No space left on device", "data.jsonl")

    monkeypatch.setattr(commands, "train", full)
    assert main(["train", "debug=tiny"]) == 2
    assert "no space left on the device (data.jsonl)" in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(commands, "train", lambda config: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", "debug=tiny"])


def test_the_process_is_left_as_it_was(monkeypatch):
    monkeypatch.setattr(commands, "train", lambda config: None)
    before = sys.argv, dict(os.environ)
    assert main(["train", "debug=tiny"]) == 0
    assert (sys.argv, dict(os.environ)) == before


def test_a_sweep_runs_every_job_in_order(monkeypatch):
    seen = []
    monkeypatch.setattr(commands, "train", lambda config: seen.append((config.direction.name, config.budget.retention, config.paths.run)))
    assert main(["train", "-m", "direction=tiny_qwen3,tiny_llama", "budget.retention=1.0,0.5"]) == 0
    assert [(name, retention) for name, retention, _ in seen] == [
        ("tiny_qwen3", 1.0), ("tiny_qwen3", 0.5), ("tiny_llama", 1.0), ("tiny_llama", 0.5),
    ]  # fmt: skip
    assert len({run for _, _, run in seen}) == 4


def test_a_failing_job_of_a_sweep_names_its_overrides(monkeypatch, capsys):
    def fail(config):
        if config.budget.retention == 0.5:
            raise AcctError("no")

    monkeypatch.setattr(commands, "train", fail)
    assert main(["train", "-m", "debug=tiny", "budget.retention=1.0,0.5"]) == 2
    assert "budget.retention=0.5" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["Who is it, really?", "It's 'so': {a} [b] ${c}", "back\\slash \\' end\\", "a=b", "über, naïve"])
def test_texts_reach_the_command_as_they_were_typed(text, monkeypatch):
    seen = []
    monkeypatch.setattr(commands, "generate", lambda config: seen.append((config.context, config.query)))
    assert main(["generate", "debug=tiny", f"context={text}", f"query={text}"]) == 0
    assert seen == [(text, text)]


def test_only_texts_are_quoted():
    assert quoted("budget.retention=0.5") == "budget.retention=0.5" and quoted("-m") == "-m"


def test_text_of_reads_files(tmp_path):
    (tmp_path / "context.txt").write_text("words", encoding="utf-8")
    assert commands.text_of(f"@{tmp_path / 'context.txt'}", "context") == "words"
    with pytest.raises(InputError, match="query is empty"):
        commands.text_of("  ", "query")


def test_check_train_and_generate(tmp_path, capsys):
    """The path of a first user; the last step in a process of its own, as the console script runs it."""
    sizes = [f"training.{stage}.examples=4" for stage in ("cartographer", "allocator", "compiler")]
    assert main(["check", "debug=tiny"]) == 0
    assert "interface check passed" in capsys.readouterr().out
    assert not Path("results/tiny/tiny_qwen3").exists()
    assert main(["train", "debug=tiny", *sizes]) == 0
    assert json.loads(Path("results/tiny/tiny_qwen3/provenance.json").read_text())["direction"] == "tiny_qwen3"
    question = ["context=The teacher of Tami is Koba.", "query=Who is the teacher of Tami?"]
    command = [sys.executable, "-m", "acct.cli.main", "generate", "debug=tiny", *sizes, *question]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr[-2000:]
