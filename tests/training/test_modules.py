"""What one run lends another: its modules under another budget (`paths.modules`), its Compiler as a start (`paths.start`)."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acct.cli.evaluation import evaluate_direction
from acct.config.root import Config
from acct.errors import ArtifactError
from acct.pipeline import choose, rank
from acct.reporting.intervals import Bootstrap
from acct.reporting.write import other_tables
from acct.source import read_context, read_query
from acct.training.artifacts import load_artifact
from acct.training.loop import FitReport
from acct.training.modules import load_interface
from acct.training.run import train
from acct.training.session import load_configured_pair
from acct.transfer import ContextTransfer
from tests.training.conftest import copy_of, tiny


def lent(finished: Config, results: Path, *overrides: str) -> Config:
    return tiny(results, f"paths.data={finished.paths.data}", f"paths.modules={finished.paths.run}", *overrides)


@pytest.mark.parametrize("retention", [0.5, 0.125, 1.0])
def test_lent_modules_are_those_of_the_other_run_and_keep_this_run_s_budget(finished, tmp_path, retention):
    config = lent(finished, tmp_path, f"budget.retention={retention}")
    pair = load_configured_pair(config)
    interface, own = load_interface(config, pair), load_interface(finished, pair)
    for name, value in own.compiler.state_dict().items():
        assert torch.equal(interface.compiler.state_dict()[name], value)
    trained = {"compiler"} if retention == 1 else {"cartographer", "allocator", "compiler"}
    digests = {kind: load_artifact(Path(finished.paths.run), kind).digest for kind in trained}
    assert interface.identity == {**digests, "trained_retention": "0.25"} and "trained_retention" not in own.identity
    length = 96
    ids = torch.randint(5, 50, (1, length), generator=torch.Generator().manual_seed(1))
    states = read_query(pair.source, read_context(pair.source, ids), ids[:, :7])
    scores = {name: rank(one, pair.geometry, states) for name, one in (("lent", interface), ("own", own))}
    if retention < 1:
        assert torch.equal(scores["lent"], scores["own"]), "the order is the Cartographer's, whatever the budget is"
    kept = choose(interface, pair.geometry, states, scores["lent"])
    assert int(kept.counts.sum()) == round(retention * length) * pair.geometry.units
    compiled = interface.compiler(states, kept)
    assert bool(torch.isfinite(compiled.keys).all()) and compiled.keys.shape[0] == int(kept.counts.sum())


def test_a_run_with_lent_modules_trains_nothing(finished, tmp_path, caplog):
    config = lent(finished, tmp_path, "budget.retention=0.5")
    with caplog.at_level(logging.INFO, logger="acct"):
        assert train(config) == {}
    assert f"the modules are those of {finished.paths.run}" in caplog.text and not Path(config.paths.run).exists()


def test_another_retention_is_refused_unless_the_modules_are_lent_and_another_tail_always(finished, tmp_path):
    config = lent(finished, tmp_path, "budget.retention=0.5", "budget.tail_tokens=2")
    pair = load_configured_pair(config)
    with pytest.raises(ArtifactError, match=r"built with budget.tail_tokens = 4, now it is 2"):
        load_interface(config, pair)
    own = tiny(tmp_path, "budget.retention=0.5", f"paths.run={finished.paths.run}")
    with pytest.raises(ArtifactError, match=r"budget.retention = 0.25, now it is 0.5. .*paths.modules=<run folder>"):
        load_interface(own, pair)


def test_records_and_tables_say_which_budget_the_modules_were_trained_for(finished, tmp_path):
    shared = ("evaluation.tasks=[search_qa]", "evaluation.methods=[target_full,acct,native_kv]")
    for variant, retention in (("", 0.25), ("", 0.5), ("plus", 0.25), ("plus", 0.5)):
        config = lent(finished, tmp_path, *shared, f"budget.retention={retention}", f"paths.variant={variant}")
        run = str(config.paths.run).replace("/tiny/", "/micro/")  # runs of random models stay out of tables
        report = evaluate_direction(replace(config, scale="micro", paths=replace(config.paths, run=run)))
        written = json.loads((report.folder / "configuration.json").read_text())
        assert written.get("interface.trained_retention") == ("0.25" if retention == 0.5 else None)
        opened = ContextTransfer.from_pretrained(report.folder.parent).interface
        assert float(opened.rule.retention) == retention and opened.identity["compiler"] == written["interface.compiler"]
    tables = {table.name: table for table in other_tables(tmp_path, "micro", 0.25, "", Bootstrap(100))}
    assert [line for line in tables["table2"].notes if "2x" in line] == [
        "2x, tiny qwen3: modules trained at 4x, nothing trained for this budget."
    ]
    assert tables["table2"].caption.endswith("trained as noted.")
    names = [name for name, _ in tables["beyond"].blocks[0].rows]
    assert names[-2:] == ["ACCT+, 2x", "Native KV, 2x"] and "ACCT+" in names
    assert tables["beyond"].notes[-1].startswith("ACCT+ 2x, tiny qwen3: modules trained at 4x")
    assert {"acct_plus", "acct_plus_2x", "native_kv_2x"} <= {figure.method for figure in tables["beyond"].figures}


def test_the_library_answers_at_another_budget(finished):
    folder = finished.paths.run
    half = ContextTransfer.from_pretrained(folder, **{"budget.retention": 0.5, "paths.modules": folder})
    context, query = list(range(5, 69)), list(range(5, 12))
    kept = {share: one.transfer(one.read(context), query) for share, one in ((0.5, half), (0.25, ContextTransfer.from_pretrained(folder)))}
    assert {share: int(kv.selection.counts.sum()) for share, kv in kept.items()} == {
        share: round(share * len(context)) * half.pair.geometry.units for share in (0.5, 0.25)
    }


def test_a_finished_compiler_of_another_selection_may_be_the_start(finished, tmp_path, monkeypatch):
    run, fit_forms = Path(finished.paths.run), []
    monkeypatch.setattr("acct.training.closed_forms.fit_closed_forms", lambda *_: fit_forms.append(1))
    monkeypatch.setattr("acct.training.run._fit", lambda *_: FitReport(0, 0, 0.0, 0, {}))
    config = copy_of(finished, tmp_path, "allocator.capacities=uniform", f"paths.start={run}")
    found = train(config)["compiler"]
    for name, value in load_artifact(run, "compiler").tensors.items():
        assert torch.equal(found.tensors[name], value), "no step was taken: it is the other run's"
    assert not fit_forms and found.card["built_from"]["artifact.start"] == load_artifact(run, "compiler").digest
    forms = load_artifact(Path(config.paths.run), "closed_forms")
    assert forms.card["started_from"] == run.name
    rates = {name for name in load_artifact(run, "closed_forms").tensors if name.startswith("rate.")}
    assert rates and all(torch.equal(forms.tensors[name], load_artifact(run, "closed_forms").tensors[name]) for name in rates)
    monkeypatch.undo()
    card = train(copy_of(finished, tmp_path / "on", "allocator.capacities=uniform", f"paths.start={run}"))["compiler"]
    moved = [name for name, value in load_artifact(run, "compiler").tensors.items() if not torch.equal(value, card.tensors[name])]
    assert moved and all(name.startswith("residual.") for name in moved)
    with pytest.raises(ArtifactError, match="built with another direction"):
        train(tiny(tmp_path / "other", "direction=tiny_llama", f"paths.start={run}"))
