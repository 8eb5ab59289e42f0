"""Placement of workers, and real processes of which one fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from acct.cli.plan import SIX
from acct.config.latency import LatencyConfig
from acct.errors import ConfigError, UnknownName
from acct.latency import placement
from acct.latency.busy import busy_warnings
from acct.latency.placement import Worker, place, visible_devices
from acct.latency.workers import run_workers

EIGHT = [str(index) for index in range(8)]
SCRIPT = """
import os, sys, time
name = [one.partition("=")[2] for one in sys.argv[1:] if one.startswith("direction=")][0]
print("sees", os.environ.get("CUDA_VISIBLE_DEVICES", "none"), os.environ.get("OMP_NUM_THREADS"), *sys.argv[1:], flush=True)
if name == "slow": time.sleep(60)
if name == "bad": sys.exit("ModelError: it went wrong")
"""


def test_six_workers_on_one_node_as_in_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "cores", lambda: 64)
    workers = place(LatencyConfig(), SIX["paper"], "cuda:0", EIGHT)
    assert [worker.devices for worker in workers] == [(0,), (1,), (2,), (3,), (4, 5), (6, 7)]
    single, double = workers[1], workers[5]
    assert single.environment == {
        "CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4",
    }  # fmt: skip
    assert double.direction == "qwen25_32b_to_7b" and double.environment["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert double.overrides == ("runtime.source_device=cuda:0", "runtime.interface_device=cuda:0", "runtime.target_device=cuda:1")
    assert single.overrides[2] == "runtime.target_device=cuda:0"
    other = place(LatencyConfig(placement={"a": [1, 0]}, threads=None), ["a"], "cuda:0", ["3", "5"])[0]
    assert other.environment == {"CUDA_VISIBLE_DEVICES": "5,3"}, "the placement counts in the GPUs that are visible"


def test_what_a_placement_lacks_is_named_with_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"qwen25_7b_to_32b on GPU 5; 5 are visible \(0, 1, 2, 3, 4\). Set latency.placement.qwen25"):
        place(LatencyConfig(), SIX["paper"], "cuda:0", EIGHT[:5])
    with pytest.raises(ConfigError, match=r"no GPU is visible. Set runtime.source_device"):
        place(LatencyConfig(), ["qwen3_4b_to_8b"], "cuda:0", [])
    with pytest.raises(ConfigError, match=r"names no GPU for x. Set latency.placement.x"):
        place(LatencyConfig(), ["x"], "cuda:0", EIGHT)
    with pytest.raises(ConfigError, match="gives GPU 0 to a and to b"):
        place(LatencyConfig(placement={"a": [0], "b": [0]}), ["a", "b"], "cuda:0", EIGHT)
    assert place(LatencyConfig(threads=None), ["x"], "cpu", []) == [Worker("x", (), {}, ())]


def test_visible_devices_are_counted_as_cuda_does() -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "2, 7"}, 2) == ["2", "7"] and visible_devices({}, 3) == ["0", "1", "2"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}, 0) == []


def test_settings_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(UnknownName, match=r"latency.warmup 'compilr'.*Did you mean 'compiler'"):
        LatencyConfig(warmup={"compilr": 1})
    with pytest.raises(ConfigError, match=r"latency\.repetitions\.compiler"):
        LatencyConfig(repetitions={"compiler": 0})
    with pytest.raises(ConfigError, match=r"latency\.placement\.a must name"):
        LatencyConfig(placement={"a": []})
    with pytest.raises(ConfigError, match=r"no lengths for scale=other: write latency.context_tokens"):
        LatencyConfig().tokens("other")
    assert LatencyConfig(context_tokens=[9, 3, 9]).tokens("other") == [3, 9] and len(LatencyConfig().tokens("paper")) == 8
    assert LatencyConfig(repetitions={"compiler": 3}).repetitions["target_prefill"] == 1


@pytest.mark.parametrize("devices", [(), (0,)])
def test_a_worker_that_fails_does_not_lose_the_others(tmp_path: Path, devices: tuple[int, ...]) -> None:
    workers = [
        Worker(name, devices, {"CUDA_VISIBLE_DEVICES": str(index), "OMP_NUM_THREADS": "1"}, (f"placed={index}",))
        for index, name in enumerate(("good", "bad", "slow", "last"))
    ]
    ended = run_workers(workers, ["scale=x"], tmp_path, 4.0, (sys.executable, "-c", SCRIPT))
    assert [one.direction for one in ended] == ["good", "bad", "slow", "last"]
    assert [one.failed for one in ended] == [
        None, "ended with 1: ModelError: it went wrong", "stopped after latency.timeout_seconds=4", None,
    ]  # fmt: skip
    assert (tmp_path / "last.log").read_text() == "sees 3 1 scale=x direction=last placed=3\n"


def test_a_busy_gpu_is_told_with_its_load() -> None:
    printed = "0, 97, 40000\n1, 3, 10\nno devices were found\n2, [N/A], 5\n"
    (warning,) = busy_warnings([0, 1, 2], 10.0, lambda: printed)
    assert warning.startswith("GPU 0 is busy: 97 % load, 40000 MiB") and busy_warnings([1], 10.0, lambda: printed) == []
    assert busy_warnings([0], 10.0, lambda: "") == []


def test_no_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "cores", lambda: 2)
    assert [placement.threads_here(asked) for asked in (None, 1, 2, 4)] == [None, 1, 2, 2]
