"""The whole suite on a tiny pair: what it writes, what it leaves out and why, and that its stages are the method's own."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from acct.cli import main as entry
from acct.cli.latency import directions_to_time, time_direction
from acct.cli.plan import SIX, directions_of
from acct.config.latency import STAGES
from acct.config.root import Config, compose
from acct.errors import ArtifactError, ConfigError
from acct.latency import measure
from acct.latency.figure import figure2
from acct.latency.measure import Suite
from acct.latency.records import document, growth_exponent, read_documents, summary
from acct.latency.stages import Conversion, Receiver, random_interface
from acct.latency.tables import latency_tables
from acct.models.pair import Pair
from acct.models.registry import adapter_for
from acct.pipeline import transfer
from acct.reporting.claims_latency import read_latency
from acct.source import read_source
from tests.tiny import tiny_batch, tiny_model

ONCE = "{" + ",".join(f"{stage}: 1" for stage in STAGES) + "}"


def configured(folder: Path, *more: str) -> Config:
    return compose([
        "debug=tiny", f"paths.results={folder}", "latency.threads=1", "latency.query_tokens=5", "latency.context_tokens=[40,64]",
        f"latency.warmup={ONCE}", f"latency.repetitions={ONCE}", "latency.matmul_size=32", "latency.copied_bytes=65536",
        "latency.ceiling_tries=1", "latency.floor_slack=0.0", *more,
    ])  # fmt: skip


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], dict[str, Any]]:
    """The folder of a run with a growth series, its printed lines, its document."""
    folder = tmp_path_factory.mktemp("latency")
    lines = time_direction(configured(folder, "latency.growth_tokens=[40,80]", "latency.repetitions.compiler=3"))
    return folder, lines, read_documents(folder / "tiny" / "latency")[0]


def test_every_stage_at_every_length_with_raw_repetitions_and_provenance(timed: tuple[Path, list[str], dict[str, Any]]) -> None:
    _, lines, found = timed
    assert [record["context_tokens"] for record in found["records"]] == [40, 64] and found["skipped"] == []
    written = [line for line in lines if line.startswith("wrote ")]
    assert written and all(Path(line.removeprefix("wrote ")).is_file() for line in written)
    others = [line for line in lines if line not in written]  # without matplotlib the tables are written all the same
    assert len(others) == (0 if find_spec("matplotlib") else 1) and all(line.startswith("figure2 is not drawn") for line in others)
    record = found["records"][0]
    assert set(record["stages"]) == {*STAGES, "ridge_1", "ridge_2", "ridge_1_all"} - {"ridge"}, (
        "a source of 2 layers has a map from 2, not from 8"
    )
    compiler = record["stages"]["compiler"]
    assert len(compiler["raw_ms"]) == 3 and len(compiler["warmup_ms"]) == 1 and compiler["peak_bytes"] > 0 and compiler["flops"] > 0
    assert compiler["times_bound"] == pytest.approx(compiler["median_ms"] / compiler["bound_ms"])
    assert found["provenance"]["versions"]["torch"] == torch.__version__ and found["config"]["latency"]["query_tokens"] == 5
    assert record["mounted_bytes"] <= 1.05 * record["ideal_bytes"] and record["ideal_bytes"] == 2 * 9 * 10 * 12 * 4
    assert [one["context_tokens"] for one in found["growth"]] == [40, 80] and found["growth_exponent"] is not None
    assert set(found["growth"][0]["stages"]) == {"cartographer", "allocator", "compiler"}


def test_the_ledger_reads_what_the_suite_writes(timed: tuple[Path, list[str], dict[str, Any]]) -> None:
    folder, _, found = timed
    records = read_latency(folder / "tiny" / "latency" / "latency.json")
    assert [record.context_tokens for record in records] == [40, 64]
    for record, raw in zip(records, found["records"]):
        stages = raw["stages_ms"]
        conversion = stages["cartographer"] + stages["allocator"] + stages["compiler"]
        assert record.conversion_ms == pytest.approx(conversion)
        built = stages["source_prefill"] + conversion + stages["packing"] + stages["rotation"]
        assert record.cold_speedup == pytest.approx(record.target_prefill_ms / built) and record.source_over_target is not None


def test_tables_have_the_papers_numbers_and_columns(timed: tuple[Path, list[str], dict[str, Any]]) -> None:
    folder, _, found = timed
    tables = {table.name: table for table in latency_tables([found])}
    assert list(tables) == ["table11", "table12", "table15", "latency_roofline", "latency_comparison", "latency_growth", "latency_aims"]
    assert tables["table11"].blocks[0].rows[3][1][1].text == "3"
    (block,) = tables["table12"].blocks
    assert block.columns == ("Source prefill", "Cart.", "Alloc.", "Comp.", "Conversion", "Target prefill", "Speed-up")
    assert [name for name, _ in block.rows] == ["40", "64"] and block.rows[0][1][-1].text == f"{found['records'][0]['speedup']:.2f}x"
    assert len(tables["table15"].blocks[0].rows) == 2, "the shortest and the longest"
    (block,) = tables["latency_comparison"].blocks
    assert block.columns[1:4] == ("Linear map, 1 layer", "Linear map, 2 layers", "Linear map, 1 layer, all heads")
    assert [cell.text for cell in block.rows[0][1][1:4]] == [f"{found['records'][0]['ridge_ms'][key]:.1f}" for key in ("1", "2", "1_all")]
    assert {"Linear map, 2 layers", "Linear map, 1 layer, all heads"} <= {name for name, _ in tables["latency_roofline"].blocks[0].rows}
    assert figure2([], folder) == [] and len(latency_tables([])) == 0
    lost = {**found, "skipped": [{"context_tokens": 4096, "phase": "target_prefill", "reason": "out of memory: 3 GB"}]}
    assert "4,096 tokens: left out at target_prefill: out of memory: 3 GB" in latency_tables([lost])[1].notes[0]


def test_a_length_that_does_not_fit_is_left_out_and_the_sweep_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = measure.target_prefill

    def full(target: Any, ids: torch.Tensor) -> Any:
        if ids.shape[1] == 40:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
        return original(target, ids)

    monkeypatch.setattr(measure, "target_prefill", full)
    config = configured(tmp_path)
    found = document(config, Suite(config).run(), "here")
    assert [record["context_tokens"] for record in found["records"]] == [64]
    assert found["skipped"] == [
        {"context_tokens": 40, "phase": "target_prefill", "reason": "out of memory: CUDA out of memory. Tried to allocate 3 GiB"}
    ]

    def wrong(*arguments: Any) -> Any:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(measure, "target_prefill", wrong)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        Suite(config).run()


@pytest.mark.parametrize("interface", ["float32", "bfloat16"])
def test_models_in_bfloat16_as_on_a_gpu(tmp_path: Path, interface: str) -> None:
    config = configured(
        tmp_path, "runtime.dtype=bfloat16", f"latency.interface_dtype={interface}", "latency.context_tokens=[40]", "latency.inputs=random"
    )
    suite = Suite(config)
    sample = suite.run().samples[40]
    assert sample.mounted_bytes <= 1.05 * sample.ideal_bytes and sample.ideal_bytes == 2 * 9 * 10 * 12 * 2
    with torch.no_grad():
        kv = suite.conversion.convert(suite._random(40)())
    assert kv.keys.dtype == kv.values.dtype == torch.bfloat16 and len(kv.keys) == 9 * 10


def test_a_prefill_below_its_floor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "read_source", lambda source, batch: None)  # nothing is computed
    config = configured(tmp_path, "latency.floor_slack=1.0", "latency.inputs=random")
    suite = Suite(config)
    suite._ceilings = lambda: dict.fromkeys(("source", "interface", "target"), measure.Ceilings(1e6, 1e12))  # type: ignore[method-assign]
    monkeypatch.setattr(suite, "_target", lambda *arguments: None)
    measured = suite.run()
    assert measured.samples == {} and [one["phase"] for one in measured.skipped] == ["source_prefill"] * 2
    assert "Something was not computed, or latency.floor_slack is too strict." in str(measured.skipped[0]["reason"])


def test_the_timed_stages_are_the_method(tmp_path: Path) -> None:
    source, target = (adapter_for(tiny_model("qwen3", size=size)) for size in ("source", "target"))
    pair, config = Pair.of(source, target), configured(tmp_path)
    interface = random_interface(config, pair.geometry, 0)
    states = read_source(source, tiny_batch(1, (30,), (6,)))
    receiver = Receiver(target.geometry, target.rotary, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        stages = Conversion(pair.geometry, interface, receiver)
        kv, cache = stages.rotation(stages.packing(stages.convert(states)))
    expected = transfer(pair, interface, states)
    assert torch.equal(kv.keys, expected.keys) and torch.equal(kv.values, expected.values) and kv.rotated
    assert cache.mounted_bytes() == 2 * len(kv.keys) * target.geometry.head_dim * 4
    counts = kv.selection.counts[0]
    assert int(counts.max()) > int(counts.min()), "units keep unequal counts"


def test_the_exponent_is_the_slope_in_logarithms() -> None:
    assert growth_exponent([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0) and growth_exponent([5], [1.0]) is None


def test_a_foreign_file_in_the_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"format": "acct-latency-0"}')
    with pytest.raises(ArtifactError, match=r"other.json is no document of format 'acct-latency-1'.*acct latency"):
        read_documents(tmp_path)


def test_the_command_ends_with_one_json_document(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = summary  # the real lines, the measurement itself replaced
    config = configured(tmp_path, "latency.context_tokens=[40]", "latency.ridge_source_layers=[]", "latency.ridge_all_heads=[]")
    result = Suite(config).run()
    monkeypatch.setattr(measure.Suite, "run", lambda self: result)
    arguments = ["latency", "debug=tiny", f"paths.results={tmp_path}", "latency.context_tokens=[40]", "latency.threads=1"]
    assert entry.main(arguments) == 0
    (line,) = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert line == measured("tiny_qwen3", line["device"], "float32", result.samples[40]) and line["ridge_ms"] == {}
    assert entry.main(["latency", "tiny_qwen4", "debug=tiny"]) == 2
    assert "Did you mean 'tiny_qwen3'" in capfd.readouterr().err
    assert entry.main(["latency", "all", "direction=tiny_qwen3"]) == 2


def test_a_direction_that_is_only_timed_stays_out_of_sweeps_and_tables() -> None:
    assert directions_of("cpu") == ["qwen3_06b_to_17b"] and "qwen3_06b_to_17b" not in directions_of("paper")
    assert directions_to_time("cpu") == ("qwen3_06b_to_17b",) and directions_to_time("paper") == SIX["paper"]
    config = compose(["scale=cpu"])
    assert (config.direction.name, config.scale, config.latency.tokens("cpu")) == ("qwen3_06b_to_17b", "cpu", [512, 2048])
    assert dataclasses.asdict(config.budget) == {"retention": 0.25, "tail_tokens": 32}


def test_lengths_beyond_the_window_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"reads at most 4096 tokens.*latency.yarn=true"):
        Suite(configured(tmp_path, "latency.context_tokens=[4096]"))
    with pytest.raises(ConfigError, match=r"runtime\.target_device_map spreads weights from files: set latency\.weights=hub"):
        Suite(configured(tmp_path, "runtime.target_device_map=auto"))


def test_a_compiler_that_rotates_has_the_rotation_in_its_own_roofline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite(configured(tmp_path))
    apart, fused = suite._sample(40), suite._sample(40)
    suite._count_conversion(apart)
    monkeypatch.setattr(Conversion, "rotates", True)
    suite._count_conversion(fused)
    moved = apart.work["rotation"]
    assert moved.flops == 3 * 9 * 10 * 12 and "rotation" not in fused.work
    assert fused.work["compiler"].flops == apart.work["compiler"].flops + moved.flops
    assert fused.work["compiler"].bytes == apart.work["compiler"].bytes, "keys are written once either way"
