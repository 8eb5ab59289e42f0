"""The three stages on tiny real models: artifacts, reuse, refusals, resume, ablations, data parallelism."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from acct.cli.evaluation import evaluate_direction
from acct.config.root import Config
from acct.errors import ArtifactError, ConfigError
from acct.selection import unit_index
from acct.training.artifacts import KINDS, load_artifact
from acct.training.compilation import CompilationTask
from acct.training.files import CARD
from acct.training.loop import FitReport
from acct.training.modules import load_compiler, load_interface
from acct.training.run import LATER, frozen_part, train
from acct.training.session import open_session
from tests.training.conftest import copy_of, tiny

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"}


def run_of(config: Config) -> Path:
    return Path(config.paths.run)


def weights(run: Path, kind: str) -> dict[str, torch.Tensor]:
    return dict(load_artifact(run, kind).tensors)


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_every_stage_leaves_an_artifact_that_names_what_it_was_built_from(finished):
    run = run_of(finished)
    artifacts = {kind: load_artifact(run, kind) for kind in KINDS}
    for kind, artifact in artifacts.items():
        built_from = artifact.card["built_from"]
        assert built_from["budget.retention"] == 0.25 and built_from["budget.tail_tokens"] == 4
        assert len(built_from["direction.source"]) == 64 and len(built_from["data (ids, prompts and answers)"]) == 64
        assert not (run / kind / "checkpoint").exists()
    assert artifacts["allocator"].card["built_from"]["artifact.cartographer"] == artifacts["cartographer"].digest
    assert artifacts["compiler"].card["built_from"]["artifact.selections"] == artifacts["selections"].digest
    bridge = artifacts["compiler"].card["bridge"]
    assert bridge["held_out"] and len(bridge["by_layer"]) == 3 and bridge["parameters_per_row"] > 0
    held_out = artifacts["cartographer"].card["held_out"]
    assert -1 <= held_out["rank_correlation"] <= 1 and 0 < held_out["kept_utility"] <= 1
    assert artifacts["cartographer"].card["capacity"]["within_limits"]
    assert artifacts["cartographer"].card["capacity"]["overrides"]["model_width"] == 32


def test_the_run_folder_says_how_it_was_made(finished):
    run = run_of(finished)
    provenance = json.loads((run / "provenance.json").read_text())
    assert set(provenance["phases_seconds"]) >= {"load", "cartographer", "allocator", "selections", "bridge", "compiler"}
    assert provenance["peak_memory_bytes"] > 0 and provenance["seeds"]["compiler"] == 0
    assert provenance["capacity"]["counts"]["allocator"] == 9
    assert provenance["compiler_examples_per_second"] > 0
    assert yaml.safe_load((run / "config.yaml").read_text())["direction"]["name"] == "tiny_qwen3"
    rows = metrics(run)
    assert {row["stage"] for row in rows} >= {"cartographer", "allocator", "compiler", "bridge", "cartographer_held_out"}
    assert all({"behaviour", "attention", "value", "key_direction", "key_scale"} <= set(row) for row in rows if row["stage"] == "compiler")


def test_a_second_run_reuses_finished_stages(finished):
    run = run_of(finished)
    before = {kind: (run / kind / CARD).read_bytes() for kind in KINDS}
    rows = len(metrics(run))
    train(finished)
    assert {kind: (run / kind / CARD).read_bytes() for kind in KINDS} == before
    assert len(metrics(run)) == rows


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("budget.tail_tokens=5", "budget.tail_tokens"),
        ("direction.prompts=base", "direction.prompts"),
        ("prompts.cue=Answer", "prompts.cue"),
        ("training.cartographer.seed=1", "training.cartographer.seed"),
        ("training.cartographer.examples=11", "training.cartographer.examples"),
        ("data.seed=1", "data.seed"),
        ("direction.source=tiny:qwen2_source", "direction.source"),
        ("supervision.straddle_power=0", "supervision.straddle_power"),
        ("cartographer.model_width=64", "cartographer.model_width"),
    ],
)
def test_a_changed_input_is_refused_by_name_and_nothing_is_touched(finished, override, field):
    run = run_of(finished)
    before = (run / "config.yaml").read_bytes()
    changed = tiny(Path(finished.paths.results), override, "stage=cartographer")
    with pytest.raises(ArtifactError, match=rf"{field} = .*training\.restart=true"):
        train(changed)
    assert (run / "config.yaml").read_bytes() == before


def test_changed_data_is_refused(finished, tmp_path):
    config = copy_of(finished, tmp_path, "stage=cartographer")
    train(config)
    data = tmp_path / "data" / "search_qa"
    data.mkdir(parents=True)
    for split in ("train", "validation"):
        text = (Path(finished.paths.data) / "search_qa" / f"{split}.jsonl").read_text()
        (data / f"{split}.jsonl").write_text(text.replace("teacher", "doctor"))
    with pytest.raises(ArtifactError, match=r"data \(ids, prompts and answers\)"):
        train(tiny(tmp_path, f"paths.data={tmp_path / 'data'}", "stage=cartographer"))


def test_restart_throws_the_old_result_away(finished, tmp_path):
    train(copy_of(finished, tmp_path, "stage=cartographer"))
    changed = copy_of(finished, tmp_path, "stage=cartographer", "training.cartographer.seed=1", "training.restart=true")
    train(changed)
    assert load_artifact(run_of(changed), "cartographer").card["built_from"]["training.cartographer.seed"] == 1


def test_a_later_stage_needs_the_earlier_one(finished, tmp_path):
    with pytest.raises(ArtifactError, match=r"has no finished cartographer. Train it first: acct train stage=cartographer"):
        train(tiny(tmp_path, f"paths.data={finished.paths.data}", "stage=allocator"))


def test_killed_by_sigkill_in_the_last_stage_ends_with_the_same_weights(finished, tmp_path):
    """Bit for bit at one thread, all artifacts of the run; `test_loop` kills inside the loop that all stages share."""
    config = copy_of(finished, tmp_path, "paths.reuse=''")
    overrides = [f"paths.results={tmp_path}", f"paths.data={finished.paths.data}", "runtime.threads=1"]
    command = [sys.executable, "-m", "acct.cli.main", "train", "debug=tiny", *overrides]
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path, end = run_of(config) / "metrics.jsonl", time.monotonic() + 90
    while time.monotonic() < end and not (path.is_file() and path.read_text().count('"compiler"') >= 2):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert (run_of(config) / "compiler" / "checkpoint" / CARD).is_file() and not (run_of(config) / "compiler" / CARD).is_file()
    train(config)
    for kind in KINDS:
        ours, theirs = weights(run_of(config), kind), weights(run_of(finished), kind)
        assert set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours), kind
    mine, whole = ([row["loss"] for row in metrics(run_of(c)) if row["stage"] == "compiler"] for c in (config, finished))
    assert mine == whole


def test_a_run_stopped_after_the_closed_forms_does_not_repeat_them(finished, tmp_path, monkeypatch):
    beyond = ["compiler.readout_start=ridge", "compiler.rates=relative", "compiler.input_bias=true", "compiler.embedding_start=predictive"]
    whole, config = (copy_of(finished, tmp_path / name, *beyond) for name in ("whole", "stopped"))
    train(whole)
    with monkeypatch.context() as patch:
        patch.setattr("acct.training.run._fit", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(config)
    card = load_artifact(run_of(config), "closed_forms").card
    assert card["built_from"]["compiler.readout_start"] == "ridge" and "compiler.behaviour" not in card["built_from"]
    monkeypatch.setattr(CompilationTask, "statistics", None)  # not called any more
    monkeypatch.setattr(CompilationTask, "readout", None)
    train(config)
    ours, theirs = weights(run_of(config), "compiler"), weights(run_of(whole), "compiler")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert load_artifact(run_of(config), "compiler").card["bridge"] == load_artifact(run_of(whole), "compiler").card["bridge"]


def test_another_loss_takes_over_the_closed_forms_and_another_bridge_does_not(finished, tmp_path, monkeypatch):
    calls = []
    given = CompilationTask.statistics
    monkeypatch.setattr(CompilationTask, "statistics", lambda task, *all, **more: (calls.append(task), given(task, *all, **more))[1])
    train(copy_of(finished, tmp_path / "loss", "compiler.behaviour=0.5", "compiler.attention_output=1", "training.compiler.epochs=1"))
    assert not calls
    bridge = weights(run_of(copy_of(finished, tmp_path / "loss")), "compiler")["bridge.key_map"]
    assert torch.equal(bridge, weights(run_of(finished), "compiler")["bridge.key_map"])
    train(copy_of(finished, tmp_path / "bridge", "compiler.ridge=0.5", "training.compiler.epochs=1"))
    assert len(calls) == 2  # training and held-out examples


def test_retention_one_needs_neither_cartographer_nor_allocator(finished, tmp_path):
    config = tiny(tmp_path, f"paths.data={finished.paths.data}", "budget.retention=1.0", "training.compiler.epochs=1")
    found = train(config)
    assert set(found) == {"selections", "compiler"} and config.paths.run.endswith("tiny_qwen3-r1")
    counts, lengths = found["selections"].tensors["train.counts"], found["selections"].tensors["train.context_lengths"]
    assert bool((counts == lengths[:, None]).all())


def test_random_orders_retrain_allocator_and_compiler(finished, tmp_path):
    config = tiny(tmp_path, f"paths.data={finished.paths.data}", "experiment=table3_random", "training.compiler.epochs=1")
    found = train(config)
    assert set(found) == {"allocator", "selections", "compiler"} and config.paths.run.endswith("-random")
    assert not torch.equal(found["selections"].tensors["train.positions"], weights(run_of(finished), "selections")["train.positions"])


def test_uniform_capacity_copies_the_rankings_and_keeps_equal_counts(finished, tmp_path):
    config = copy_of(finished, tmp_path, "allocator.capacities=uniform", "training.compiler.epochs=1")
    found = train(config)
    assert set(found) == {"cartographer", "selections", "compiler"}
    assert found["cartographer"].card["copied_from"] == run_of(finished).name
    assert found["cartographer"].digest == load_artifact(run_of(finished), "cartographer").digest
    counts = found["selections"].tensors["train.counts"]
    assert bool((counts == counts[:, :1]).all())


def test_a_bridge_alone_can_be_asked_for(finished, tmp_path):
    config = copy_of(finished, tmp_path, "compiler.residual=false")
    found = train(config)
    assert not any(name.startswith("residual") for name in found["compiler"].tensors)
    other = weights(run_of(finished), "compiler")
    assert all(torch.equal(value, other[name]) for name, value in found["compiler"].tensors.items())


def test_a_bridge_may_read_all_heads_of_several_layers(finished, tmp_path):
    """What is kept of a batch, and what the finished Compiler maps, are the same figures."""
    wide = copy_of(finished, tmp_path, "compiler.bridge_layers=2", "compiler.bridge_heads=all", "training.cache_gigabytes=1")
    train(wide)
    named = load_artifact(run_of(wide), "compiler").card["built_from"]
    assert (named["compiler.bridge_layers"], named["compiler.bridge_heads"]) == (2, "all")
    assert not {f"compiler.{name}" for name in LATER} & set(load_artifact(run_of(finished), "compiler").card["built_from"])
    found, narrow = weights(run_of(wide), "compiler"), weights(run_of(finished), "compiler")
    assert found["bridge.key_map"].shape[1] == 4 * narrow["bridge.key_map"].shape[1]
    card = load_artifact(run_of(wide), "compiler").card
    with open_session(wide, record=False) as session:
        compiler = load_compiler(wide, session.pair.geometry, load_artifact(run_of(wide), "compiler"), session.device)
        held = CompilationTask(session, session.held_out, frozen_part(load_artifact(run_of(wide), "selections"), "held_out", session))
        held.bridge, held.residual = compiler.bridge, compiler.residual
        for name, term in held.measure(2, True).items():
            assert card["held_out"][f"compiler_{name}"] == pytest.approx(term, rel=1e-4)
        assert card["bridge"]["parameters_per_row"] > 0
    with pytest.raises(ConfigError, match="reads 1 to 2 source layers, got 3"):
        train(copy_of(finished, tmp_path / "more", "compiler.bridge_layers=3"))


def test_a_bridge_may_read_one_vector_of_all_that_is_known(finished, tmp_path):
    """What is kept of a batch, what the finished Compiler maps, and what an interface with the pair's embeddings maps, are the same."""
    shared = copy_of(finished, tmp_path, "compiler.subspace_width=24", "training.cache_gigabytes=1")
    card = train(shared)["compiler"].card
    found, narrow = weights(run_of(shared), "compiler"), weights(run_of(finished), "compiler")
    assert card["capacity"]["counts"]["compiler"] == sum(value.numel() for value in found.values())
    assert found["bridge.key_map"].shape[1] == 24 != narrow["bridge.key_map"].shape[1]
    assert card["bridge"]["r2_keys"] > load_artifact(run_of(finished), "compiler").card["bridge"]["r2_keys"]
    assert card["built_from"]["compiler.subspace_width"] == 24
    with open_session(shared, record=False) as session:
        interface = load_interface(shared, session.pair)
        held = CompilationTask(session, session.held_out, frozen_part(load_artifact(run_of(shared), "selections"), "held_out", session))
        held.bridge, held.residual, held.subspace = interface.compiler.bridge, interface.compiler.residual, interface.compiler.subspace
        for name, term in held.measure(2, True).items():
            assert card["held_out"][f"compiler_{name}"] == pytest.approx(term, rel=1e-4)
        batch, frozen = session.held_out.batch([0, 1]), held.freeze([0, 1])
        states = session.states.context(session.pair.source, batch.context_ids, batch.context_lengths)
        compiled = interface.compiler(states, frozen.selection)
        torch.testing.assert_close(compiled.keys, held.compiled(frozen)[0], rtol=1e-4, atol=1e-4)
    again = train(copy_of(shared, tmp_path / "rates", "compiler.subspace_width=24", "compiler.behaviour=0.5"))["compiler"]
    for name, value in again.tensors.items():
        if not name.startswith("residual"):
            assert torch.equal(value, found[name]), "closed forms are taken over"


def test_a_readout_that_starts_in_closed_form_is_ahead_of_the_bridge_before_any_step(finished, tmp_path, monkeypatch):
    seen = {}

    def no_steps(session, stage, module, loss, checkpoint, rates):
        seen.update({name: value.detach().clone() for name, value in module.state_dict().items()})
        return FitReport(0, 0, 0.0, 0, {})

    monkeypatch.setattr("acct.training.run._fit", no_steps)
    more = ["compiler.input_bias=true", "compiler.embedding_start=predictive", "compiler.branch_start=zero", "compiler.readout_start=ridge"]
    card = train(copy_of(finished, tmp_path, *more))["compiler"].card
    assert bool(seen["key_readout"].any()) and bool(seen["value_bias"].any()) and not seen["condition_map"].any()
    held_out = card["held_out"]
    assert held_out["compiler_value"] < held_out["bridge_value"] and card["built_from"]["compiler.readout_start"] == "ridge"


def test_a_compiler_trained_on_continuations_names_what_they_were_asked_for_with(finished, tmp_path):
    card = train(copy_of(finished, tmp_path, "compiler.continuation=true"))["compiler"].card
    rows = finished.supervision
    assert card["built_from"]["supervision.continuation_rows"] == rows.continuation_rows
    assert card["built_from"]["supervision.query_rows"] == rows.query_rows
    assert "supervision.query_rows" not in load_artifact(run_of(finished), "compiler").card["built_from"]


def test_the_behaviour_term_may_enter_later(finished, tmp_path, monkeypatch):
    seen = []
    given = CompilationTask.__call__

    def watched(task, indices, step):
        loss, terms = given(task, indices, step)
        seen.append((step, "behaviour" in terms, all(one.teacher_logits is not None for one in task._cache.values())))
        return loss, terms

    monkeypatch.setattr(CompilationTask, "__call__", watched)
    more = ["compiler.behaviour_from=0.5", "training.cache_gigabytes=1", "training.compiler.regroup=false", "training.compiler.epochs=2"]
    card = train(copy_of(finished, tmp_path, *more))["compiler"].card
    steps = [step for step, _, _ in seen]
    assert steps == list(range(len(steps))) and len(steps) > 3
    assert [behaves for _, behaves, _ in seen] == [step >= len(steps) // 2 for step in steps]
    assert not seen[0][2] and seen[-1][2]  # kept batches got their logits when the term entered
    assert card["held_out"]["compiler_behaviour"] >= 0 and card["built_from"]["compiler.behaviour_from"] == 0.5


def test_further_questions_are_part_of_what_a_compiler_is_built_from(finished, tmp_path):
    card = train(copy_of(finished, tmp_path, "compiler.further_questions=2"))["compiler"].card
    assert card["built_from"]["compiler.further_questions"] == 2 and len(card["built_from"]["further questions"]) == 64
    assert not {"compiler.further_questions", "further questions"} & set(load_artifact(run_of(finished), "compiler").card["built_from"])


def test_what_attention_reads_is_a_further_term(finished, tmp_path):
    card = train(copy_of(finished, tmp_path, "compiler.attention_output=1", "compiler.behaviour=0"))["compiler"].card
    held_out = card["held_out"]
    assert held_out["bridge_attention_output"] > 0 and held_out["compiler_attention_output"] > 0 and "bridge_behaviour" not in held_out
    assert card["built_from"]["compiler.attention_output"] == 1
    assert "compiler.attention_output" not in load_artifact(run_of(finished), "compiler").card["built_from"]


def test_relative_rates_are_the_sizes_of_what_is_given_and_read(finished, tmp_path, monkeypatch):
    seen = {}

    def no_steps(session, stage, module, loss, checkpoint, rates):
        seen.update(rates)
        task = CompilationTask(session, session.train, frozen_part(load_artifact(session.run, "selections"), "train", session))
        batch = task.freeze(list(range(len(session.train.first(session.settings("compiler").examples)))))
        owner = unit_index(batch.selection)
        for unit in range(session.pair.geometry.units):
            size = batch.native_values[owner == unit].double().var(0, unbiased=False).mean().sqrt()
            assert float(rates["value_readout"][unit]) == pytest.approx(float(size), rel=1e-4)
        hidden, inside = batch.states.context_hidden, batch.states.context_lengths
        read = torch.cat([row[:length] for row, length in zip(hidden, inside.tolist())])
        expected = 1 / read.double().square().mean(0).sqrt()
        torch.testing.assert_close(rates["embedding.weight"][: hidden.shape[-1]].double(), expected, rtol=1e-3, atol=0)
        return FitReport(0, 0, 0.0, 0, {})

    monkeypatch.setattr("acct.training.run._fit", no_steps)
    asked = ["compiler.input_bias=true", "compiler.embedding_start=predictive", "compiler.rates=relative"]
    train(copy_of(finished, tmp_path / "one", *asked))
    assert set(seen) == {"key_readout", "value_readout", "key_bias", "value_bias", "embedding.weight"}
    full = dict(seen)
    monkeypatch.setattr("acct.training.run._fit", lambda *given: seen.update(given[-1]) or FitReport(0, 0, 0.0, 0, {}))
    train(copy_of(finished, tmp_path / "two", *asked, "compiler.readout_rate=0.25"))
    for name, rate in full.items():
        torch.testing.assert_close(seen[name], 0.25 * rate)


def test_a_selection_is_evaluated_before_there_is_a_compiler(finished, tmp_path):
    small = ["evaluation.tasks=[search_qa]", "evaluation.examples=3"]
    rows = "native_kv,random,target_full,snapkv_query_aware,zeros"
    for stage in ("cartographer", "allocator"):
        train(copy_of(finished, tmp_path, f"stage={stage}"))
    first = evaluate_direction(copy_of(finished, tmp_path, *small, f"evaluation.methods=[{rows}]"))
    assert first.new == 3 * 5
    for row in ("acct", "bridge_only", "noise", "wrong_document", "native_keys", "native_values"):
        with pytest.raises(ArtifactError, match=r"has no finished compiler. Train it first: acct train stage=compiler"):
            evaluate_direction(copy_of(finished, tmp_path, *small, f"evaluation.methods=[{rows},{row}]"))
    train(copy_of(finished, tmp_path, "stage=compiler"))
    second = evaluate_direction(copy_of(finished, tmp_path, *small, f"evaluation.methods=[{rows},acct]"))
    assert second.new == 3 and second.kept == 3 * 5


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_other_families_run_all_stages(finished, tmp_path, family):
    config = tiny(
        tmp_path, f"direction=tiny_{family}", f"paths.data={finished.paths.data}", "training.cartographer.examples=4",
        "training.allocator.examples=4", "training.compiler.examples=4", "training.compiler.epochs=1",
    )  # fmt: skip
    assert set(train(config)) == set(KINDS)


@pytest.mark.slow
def test_two_processes_train_allocator_and_compiler_as_one(finished, tmp_path):
    """Equal global batch: weights agree to float32 summation order."""
    run = tmp_path / "tiny" / "tiny_qwen3"
    arguments = [
        "-m", "acct.cli.main", "train", "debug=tiny", f"paths.results={tmp_path}", f"paths.data={finished.paths.data}",
        f"paths.reuse={finished.paths.run}", "allocator.answer_tokens=63", "runtime.threads=1",
    ]  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    single = copy_of(finished, tmp_path / "one", "allocator.answer_tokens=63")
    train(single)
    assert json.loads((run / "provenance.json").read_text())["processes"] == 2
    for kind in ("allocator", "compiler"):
        two, one = weights(run, kind), weights(run_of(single), kind)
        for name, value in one.items():
            assert torch.allclose(two[name], value, atol=2e-4, rtol=1e-3), (kind, name, float((two[name] - value).abs().max()))
    losses = [[row["loss"] for row in metrics(folder) if row["stage"] == "compiler"] for folder in (run, run_of(single))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
