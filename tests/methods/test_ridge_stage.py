"""`acct train stage=ridge` and the rows ridge_<m> on tiny real models: artifacts, resume, reuse, refusals, evaluation."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acct.cli.evaluation import evaluate_direction
from acct.config.root import Config, compose
from acct.errors import ArtifactError
from acct.methods.prepared import Prepared
from acct.methods.registry import get_method
from acct.methods.ridge_fit import RidgeStatistics
from acct.methods.ridge_map import RidgeMap
from acct.pipeline import Interface
from acct.reporting.names import METHODS as LABELS
from acct.training import ridge
from acct.training.artifacts import load_artifact
from acct.training.loop import Interrupted
from acct.training.run import train
from tests.evaluation.tiny_run import interface_for, sample, tiny_pair


def tiny(results: Path, *overrides: str) -> Config:
    return compose(["debug=tiny", f"paths.results={results}", "runtime.progress_seconds=1e9", "runtime.threads=1", *overrides])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A finished run folder, whose interface is the Bridge alone at retention 1, with three linear maps."""
    threads = torch.get_num_threads()
    config = tiny(tmp_path_factory.mktemp("ridge"), "ridge.all_heads=[1]", "budget.retention=1.0", "compiler.residual=false")
    train(config)
    train(replace(config, stage="ridge"))
    torch.set_num_threads(threads)
    return config


def test_every_map_is_an_artifact_that_names_what_it_was_built_from(fitted: Config) -> None:
    run = Path(fitted.paths.run)
    for name, (layers, heads, groups) in {"ridge_1": (1, "local", 9), "ridge_8": (2, "local", 9), "ridge_1_all": (1, "all", 3)}.items():
        artifact = load_artifact(run, name)
        built = artifact.card["built_from"]
        assert (built["ridge.source_layers"], built["ridge.heads"], built["ridge.penalty"]) == (layers, heads, 0.01)
        assert len(built["direction.source"]) == 64 and built["training.compiler.examples"] == 12
        assert not [field for field in built if field.startswith("budget.")], "the budget does not matter"
        report = artifact.card["ridge"]
        assert artifact.tensors["key_map"].shape[0] == groups and report["features"] == artifact.tensors["key_map"].shape[1]
        assert len(report["held_out_r2"]) == 3 and report["rows"] > 0 and report["passes"] == 1
        assert not (run / name / "checkpoint").exists() and bool(artifact.tensors["value_map"].any())
    phases = json.loads((run / "provenance.json").read_text())["phases_seconds"]
    assert {"ridge_1", "ridge_8", "ridge_1_all"} <= set(phases)


def test_finished_maps_are_reused_and_other_inputs_are_refused_by_name(fitted: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RidgeStatistics, "add", None)  # nothing may be read again
    found = train(replace(fitted, stage="ridge"))
    assert set(found) == {"ridge_1", "ridge_8", "ridge_1_all"}
    with pytest.raises(ArtifactError, match=r"ridge\.penalty = 0\.01, this run has ridge\.penalty = 1\.0"):
        train(replace(fitted, stage="ridge", ridge=replace(fitted.ridge, penalty=1.0)))


def test_an_interrupted_fit_continues_with_the_same_sums(fitted: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(tmp_path, f"paths.data={fitted.paths.data}", "stage=ridge", "ridge.source_layers=[1]", "ridge.gigabytes=1e-9")
    asked = iter([False, False, False, False, True])  # in the second of the passes: one for each distinct input

    @contextmanager
    def stopping():  # type: ignore[no-untyped-def]
        yield lambda: next(asked)

    with monkeypatch.context() as patched:
        patched.setattr(ridge, "stop_requests", stopping)
        with pytest.raises(Interrupted, match=r"ridge_1 stopped after batch 5 of \d+; saved in"):
            train(config)
    calls = []
    original = RidgeStatistics.add
    monkeypatch.setattr(RidgeStatistics, "add", lambda self, number, *rest: (calls.append(number), original(self, number, *rest)))
    train(config)
    card = load_artifact(Path(config.paths.run), "ridge_1").card["ridge"]
    assert card["passes"] > 1 and len(calls) == 3 * card["passes"] - 5 and calls[0] == 1
    resumed, whole = (load_artifact(Path(one.paths.run), "ridge_1").tensors for one in (config, fitted))
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name


def test_the_rows_are_evaluated_over_all_positions(fitted: Config) -> None:
    methods = ["target_full", "acct", "ridge_1", "ridge_8", "ridge_1_all"]
    config = replace(fitted, evaluation=replace(fitted.evaluation, tasks=["search_qa", "boolq"], methods=methods, examples=3))
    report = evaluate_direction(config)
    folder = Path(config.paths.run) / "evaluation"
    rows = [json.loads(line) for path in (folder / "parts").glob("*.jsonl") for line in path.read_text().splitlines()]
    number = 2 * 9 * 12 * 4  # both of K and V, units, head width, bytes
    for row in (row for row in rows if row["method"].startswith("ridge")):
        assert row["budget_bytes"] == row["context_tokens"] * number and row["mounted_bytes"] <= 1.05 * row["budget_bytes"]
    assert {row["method"] for row in rows} == set(methods) and report.new == 2 * 3 * len(methods)
    stored = json.loads((folder / "configuration.json").read_text())
    assert stored["interface.ridge_8"] == load_artifact(Path(config.paths.run), "ridge_8").digest


def test_a_map_that_is_not_fitted_is_refused_with_the_command(fitted: Config, tmp_path: Path) -> None:
    asked = replace(fitted.evaluation, methods=["ridge_3_all"])
    with pytest.raises(ArtifactError, match=r"no fitted ridge_3_all.*acct train stage=ridge direction=tiny_qwen3 'ridge.all_heads=\[3\]'"):
        evaluate_direction(replace(fitted, evaluation=asked))
    pair = tiny_pair()
    with pytest.raises(ArtifactError, match=r"no fitted ridge_1. Fit it first: acct train stage=ridge direction=tiny_qwen3, with"):
        ridge.load_ridge(fitted, pair, "ridge_1", tmp_path)
    with pytest.raises(ArtifactError, match=r"was fitted with direction\.source"):
        ridge.load_ridge(fitted, pair, "ridge_1")
    one = sample()
    with pytest.raises(ArtifactError, match=r"ridge_1 has no fitted map here. Fit it with acct train stage=ridge"):
        get_method("ridge_1").mount(Prepared(pair, interface_for(pair), one.examples))


@torch.no_grad()
def test_the_row_mounts_the_map_of_every_position_rotated_by_the_target() -> None:
    pair, one = tiny_pair(), sample()
    linear = RidgeMap(pair.geometry, 1)
    generator = torch.Generator().manual_seed(0)
    for parameter in linear.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    interface: Interface = interface_for(pair, linear_maps={"ridge_1": linear})
    prepared = Prepared(pair, interface, one.examples)
    kv = get_method("ridge_1").mount(prepared).context
    assert kv is not None and kv.rotated and torch.equal(kv.selection.counts, prepared.source.context_lengths[:, None].expand(-1, 9))
    keys, values = linear(prepared.source)
    slot = 0
    for layer in range(3):  # packed order: layer, example, head, position
        for row, length in enumerate(prepared.source.context_lengths.tolist()):
            for head in range(3):
                unit, places = layer * 3 + head, torch.arange(length)
                rotated = pair.target.rotate(keys[row, unit, :length], places)
                torch.testing.assert_close(kv.keys[slot : slot + length], rotated)
                assert torch.equal(kv.values[slot : slot + length], values[row, unit, :length])
                slot += length
    assert slot == len(kv.keys)


def test_any_number_of_layers_is_a_row_and_the_usual_ones_have_labels() -> None:
    assert get_method("ridge_4").name == "ridge_4" and get_method("ridge_4").on_request
    assert {"ridge_1", "ridge_8", "ridge_1_all", "ridge_8_all"} <= set(LABELS)
