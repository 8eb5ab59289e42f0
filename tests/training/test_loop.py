"""The loop: order, schedule, checkpoints, resume after SIGKILL, interrupts, refusals, data parallelism."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acct.errors import ArtifactError, ModelError
from acct.training import files
from acct.training.loop import batches, rate_factor
from tests.training.toy import IDENTITY, losses, make_module, train

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def spawn(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.training.toy", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_steps(folder: Path, steps: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        path = folder / "metrics.jsonl"
        if path.is_file() and path.read_text().count("\n") >= steps:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {steps} steps in time")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=90), st.integers(1, 9), st.integers(0, 3), st.integers(0, 3))
def test_batches_hold_every_example_once_and_depend_on_seed_and_epoch_only(lengths, batch, seed, epoch):
    found = batches(lengths, batch, seed, epoch)
    assert sorted(index for b in found for index in b) == list(range(len(lengths)))
    assert len(found) == -(-len(lengths) // batch)
    assert max(map(len, found)) <= batch
    assert found == batches(lengths, batch, seed, epoch)


def test_epochs_differ_in_order():
    assert batches(range(40), 4, 0, 0) != batches(range(40), 4, 0, 1)


def test_without_regrouping_epochs_share_their_batches():
    first, second = batches(range(40), 4, 0, 0, regroup=False), batches(range(40), 4, 0, 1, regroup=False)
    assert first != second and sorted(first) == sorted(second)


def test_rate_rises_linearly_then_stays_or_falls_to_zero():
    assert [rate_factor(s, 100, 0.04, "constant") for s in (0, 1, 3, 4, 99)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert rate_factor(4, 100, 0.04, "cosine") == 1.0
    assert rate_factor(99, 100, 0.04, "cosine") < 1e-3
    assert rate_factor(0, 10, 0.0, "constant") == 1.0


def test_training_lowers_the_loss_and_repeats_bit_for_bit(tmp_path):
    first, report = train(tmp_path / "a")
    second, _ = train(tmp_path / "b")
    assert report.steps == 18 and report.examples == 66 and report.examples_per_second > 0
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
    assert sum(losses(tmp_path / "a")[-4:]) < sum(losses(tmp_path / "a")[:4])


def test_killed_by_sigkill_then_resumed_equals_uninterrupted_bit_for_bit(tmp_path):
    process = spawn(str(tmp_path / "killed"), "--pause", "0.1")
    wait_for_steps(tmp_path / "killed", 7)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed, report = train(tmp_path / "killed")
    whole, _ = train(tmp_path / "whole")
    assert 6 <= report.resumed_at < 18  # at most the step it was in is lost
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters()))
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


def test_interrupt_saves_says_so_and_continues(tmp_path):
    process = spawn(str(tmp_path), "--pause", "0.1")
    wait_for_steps(tmp_path, 3)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0 and "Traceback" not in output
    assert "saved in" in output and "The same command continues" in output
    _, report = train(tmp_path)
    assert report.resumed_at >= 3


def test_a_finished_stage_does_nothing_again(tmp_path):
    module, _ = train(tmp_path)
    again, report = train(tmp_path)
    assert report.examples == 0 and report.resumed_at == report.steps
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters()))


@pytest.mark.parametrize("field", list(IDENTITY))
def test_changed_input_refuses_to_resume_and_names_the_field(tmp_path, field):
    train(tmp_path, epochs=1)
    with pytest.raises(ArtifactError, match=f"{field} = ") as caught:
        train(tmp_path, identity={**IDENTITY, field: "changed"})
    assert "training.restart=true" in str(caught.value)


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, Path.unlink])
def test_damaged_checkpoint_is_refused(tmp_path, damage):
    train(tmp_path, epochs=1)
    damage(next((tmp_path / "checkpoint").glob("*.safetensors")))
    with pytest.raises(ArtifactError, match=r"truncated or was changed|is missing"):
        train(tmp_path)


@pytest.mark.parametrize("text", ["{", '{"step": NaN}', "[]", '{"format": "other"}'])
def test_damaged_card_is_refused(tmp_path, text):
    train(tmp_path, epochs=1)
    (tmp_path / "checkpoint" / "card.json").write_text(text)
    with pytest.raises(ArtifactError):
        train(tmp_path)


def test_checkpoint_of_another_module_is_refused(tmp_path):
    train(tmp_path, epochs=1)
    with pytest.raises(ArtifactError, match=r"0.weight"):
        train(tmp_path, module=torch.nn.Sequential(torch.nn.Linear(6, 2)))


def test_full_disk_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    whole, _ = train(tmp_path / "whole")
    calls = []
    fsync = os.fsync

    def full(descriptor: int) -> None:
        calls.append(1)
        if len(calls) > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ArtifactError, match=r"no space left.*kept"):
        train(tmp_path / "full")
    monkeypatch.undo()
    assert not list((tmp_path / "full" / "checkpoint").glob(".*part"))
    resumed, report = train(tmp_path / "full")
    assert report.resumed_at == 4
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters()))


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path):
    module = make_module()
    train(tmp_path, module=module, epochs=1)
    broken = make_module()
    broken[0].register_forward_hook(lambda layer, inputs, output: output * float("nan"))
    with pytest.raises(ModelError, match=r"loss is nan at step 7 of 18"):
        train(tmp_path, module=broken)
    _, report = train(tmp_path)
    assert report.resumed_at == 6


def test_two_processes_train_as_one(tmp_path):
    """Equal global batch: the losses agree to float32 summation order (seen 1e-7)."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "tests.training.toy"]
    done = subprocess.run(
        [*command, str(tmp_path / "two"), "--no-dropout"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    one, _ = train(tmp_path / "one", dropout=False)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-6)
    from acct.training.checkpoint import Checkpoint
    from acct.training.loop import make_optimizer
    from tests.training.toy import settings

    two = make_module()
    Checkpoint(tmp_path / "two" / "checkpoint", IDENTITY).load(two, make_optimizer(two, settings()))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one.parameters(), two.parameters()))


def test_a_rate_scales_the_steps_of_one_parameter_alone(tmp_path):
    start, rate = make_module().state_dict(), torch.linspace(0, 2, 16)[:, None]
    once = {"examples": 4, "epochs": 1, "batch": 22, "dropout": False}
    (plain, _), (scaled, _) = train(tmp_path / "plain", **once), train(tmp_path / "scaled", rates={"0.weight": rate}, **once)
    for name, before in start.items():
        step, found = plain.state_dict()[name] - before, scaled.state_dict()[name] - before
        assert step.abs().max() > 0
        torch.testing.assert_close(found, (rate * step) if name == "0.weight" else step, rtol=1e-4, atol=1e-7)
