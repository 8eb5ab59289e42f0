"""What `experiments/collect.py` copies out of a results folder."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from acct.errors import ArtifactError
from acct.reporting.claims_excerpt import excerpt
from acct.reporting.render import COLUMNS
from acct.training.artifacts import load_artifact
from tests.evaluation.test_run import OPTIONS, evaluate
from tests.training.conftest import finished  # noqa: F401 (a fixture)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def collect(tmp_path, monkeypatch) -> ModuleType:
    """The script, writing into copies of the committed READMEs."""
    spec = importlib.util.spec_from_file_location("collect", ROOT / "experiments/collect.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("table1", "table2", "table3", "claims", "figures", "latency", "training"):
        (tmp_path / name).mkdir()
        shutil.copyfile(ROOT / "experiments" / name / "README.md", tmp_path / name / "README.md")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return module


def test_an_outcome_is_replaced_and_nothing_else(collect):
    readme = (ROOT / "experiments/table1/README.md").read_text(encoding="utf-8")
    once = collect.filled(readme, "# Table1\n\n| a |\n\nProvenance: x\n")
    assert once.partition(collect.BEGIN)[2].partition(collect.END)[0] == "### Table1\n\n| a |\n\nProvenance: x\n"
    assert collect.filled(once, "# Table1\n") == collect.filled(readme, "# Table1\n")


def test_what_is_not_there_is_named_and_its_copy_stays(collect, tmp_path, capsys):
    before = (tmp_path / "table2/README.md").read_text(encoding="utf-8")
    tables = tmp_path / "results" / "tables"
    tables.mkdir(parents=True)
    (tables / "table1.md").write_text("# Table1\n\n| seen |\n")
    (tables / "table1.csv").write_text("a,b\n")
    assert collect.main([str(tmp_path / "results")]) == 2
    said = capsys.readouterr().err
    assert "table2.md" in said and "table1.md" not in said and "figures" in said and "no evaluated run" in said
    assert "| seen |" in (tmp_path / "table1/README.md").read_text() and (tmp_path / "table1/table1.csv").read_text() == "a,b\n"
    assert (tmp_path / "table2/README.md").read_text(encoding="utf-8") == before


def test_the_ledger_is_copied_and_shown_in_the_readme(collect, tmp_path):
    folder = tmp_path / "experiments"
    (folder / "claims").mkdir(parents=True)
    source, document = ROOT / "experiments/claims/claims.json", tmp_path / "README.md"
    document.write_text("a\n<!-- claims:begin -->\n<!-- claims:end -->\nb\n")
    assert collect.copy_ledger(source, folder) == []
    assert (folder / "claims/claims.json").read_bytes() == source.read_bytes()
    assert excerpt(source) in document.read_text(encoding="utf-8")
    assert len(collect.copy_ledger(tmp_path / "none.json", folder)) == 1


def test_figures_are_shown_in_the_order_of_the_registry_and_old_ones_go(collect, tmp_path):
    source, folder = tmp_path / "drawn", tmp_path / "figures"
    source.mkdir()
    (folder / "relative_old.png").write_bytes(b"old")
    for name in ("survival_run", "relative_boolq", "rank_correlation"):
        (source / f"{name}.png").write_bytes(b"png")
    assert collect.copy_figures(source, folder) == []
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.index("relative_boolq.png") < text.index("survival_run.png") < text.index("rank_correlation.png")
    assert not (folder / "relative_old.png").exists() and (folder / "survival_run.png").read_bytes() == b"png"


def test_training_costs_are_a_row_a_run_with_dashes_for_what_was_not_trained(collect, tmp_path):
    facts = {
        "cartographer_examples_per_second": 16.26, "compiler_examples_per_second": 18.0, "commit": "0123456789abcdef", "cores": 2,
        "compiler_step_target_forwards": {"fresh": 4.55, "kept": 2.0}, "phases_seconds": {"bridge": 40.0, "compiler": 130.5},
        "peak_memory_bytes": 3 * 2**29, "processor": "a chip",
    }  # fmt: skip
    (tmp_path / "results/one").mkdir(parents=True)
    (tmp_path / "results/one/provenance.json").write_text(json.dumps(facts))
    assert collect.copy_training(tmp_path / "results", tmp_path / "training") == []
    text = (tmp_path / "training/README.md").read_text(encoding="utf-8")
    assert "| one | 16.3 | – | 18.0 | 4.5 | 2.0 | 170.5 | 1.5 |" in text and "commit 0123456789ab; a chip, 2 cores" in text
    assert len(collect.copy_training(tmp_path / "none", tmp_path / "training")) == 1


def test_latency_is_copied_with_its_raw_repetitions(collect, tmp_path):
    results, folder = tmp_path / "cpu", tmp_path / "latency"
    for place in ("latency", "tables", "figures"):
        (results / place).mkdir(parents=True)
    assert "reproduce-latency SCALE=cpu" in collect.copy_latency(results, folder)[0]
    for name in ("one", "latency"):
        (results / "latency" / f"{name}.json").write_text("{}")
    for name in ("latency_growth", "table12"):
        (results / "tables" / f"{name}.md").write_text(f"# {name}\n\n| x |\n")
    (results / "figures/figure2.png").write_bytes(b"png")
    assert collect.copy_latency(results, folder) == []
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.index("### table12") < text.index("### latency_growth") < text.index("figure2.png")
    assert (folder / "one.json").is_file() and not (folder / "latency.json").exists() and (folder / "figure2.png").read_bytes() == b"png"


def test_a_run_is_summed_up_without_weights_and_answers(collect, finished, tmp_path):  # noqa: F811
    results = tmp_path / "results"
    run = results / "tiny_run"
    shutil.copytree(finished.paths.run, run)
    shutil.rmtree(run / "evaluation", ignore_errors=True)
    report = evaluate(run / "evaluation", replace(OPTIONS, methods=("target_full", "acct")))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/older.json").write_text("{}")
    assert collect.copy_runs(results, tmp_path / "runs") == []
    (copied,) = (tmp_path / "runs").iterdir()
    summary = json.loads(copied.read_text(encoding="utf-8"))
    assert copied.stem == "tiny_run" and summary["records"]["rows"] == report.new
    assert summary["records"]["methods"] == ["acct", "target_full"] and len(summary["records"]["sha256"]) == 64
    assert set(summary["cards"]) == set(collect.STAGES) and summary["training"]["seeds"] and summary["evaluation"]["seconds"]
    assert summary["configuration"]["budget"]["retention"] == finished.budget.retention
    first = copied.read_bytes()
    collect.copy_runs(results, tmp_path / "runs")
    assert copied.read_bytes() == first


def test_the_real_pair_is_copied_with_every_answer_and_what_it_cost(collect, finished, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    script = importlib.import_module("real_small")
    folder, results = tmp_path / "real_small", tmp_path / "results"
    folder.mkdir()
    shutil.copyfile(ROOT / "experiments/real_small/README.md", folder / "README.md")
    monkeypatch.setattr(script, "FOLDER", folder)
    assert script.main([str(results)]) == 2 and not list(folder.glob("*.csv"))
    shutil.copytree(finished.paths.run, results / "tiny_run")
    shutil.rmtree(results / "tiny_run/evaluation", ignore_errors=True)
    report = evaluate(results / "tiny_run/evaluation", replace(OPTIONS, methods=("target_full", "acct")))
    for name in ("tables", "figures"):
        (results / name).mkdir()
    (results / "tables/beyond.md").write_text("# Beyond\n\n| ACCT+ |\n")
    figures = [("target_full", 80, 75, 85), ("acct_plus", 60.04, 50, 70), ("random", "", "", "")]
    lines = [f"a_to_b,squad,f1,{method},{value},{low},{high},,,40" for method, value, low, high in figures]
    (results / "tables/beyond.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    (tmp_path / "experiments").mkdir()
    folder = folder.rename(tmp_path / "experiments/real_small")
    monkeypatch.setattr(script, "FOLDER", folder)
    (tmp_path / "README.md").write_text(f"before\n{script.MARKERS[0]}old\n{script.MARKERS[1]}\nafter\n")
    (results / "figures/relative.png").write_bytes(b"png")
    assert script.main([str(results)]) == 2  # table2 and nll_gap are missing, which is said
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "### Beyond" in text and "| tiny_run | " in text and f"| {report.new:,} |" in text and "](relative.png)" in text
    assert str(tmp_path) not in (folder / "runs/tiny_run.json").read_text(encoding="utf-8")
    front = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "SQuAD (F1, n 40)" in front and "| **ACCT+** | 60.0 [50.0, 70.0] |" in front and "Random" not in front and "old" not in front
    assert all((folder / name).is_file() for name in ("published/tiny_run/evaluation/records.parquet", "runs/tiny_run.json", "beyond.csv"))
    monkeypatch.setattr(script, "LARGEST", 1)
    assert "more than 1: not copied" in script.publish(results, folder / "published")[0]


def test_a_published_run_goes_on_elsewhere(collect, finished, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    script = importlib.import_module("real_small")
    one, other = tmp_path / "one/tiny", tmp_path / "other/tiny"
    run, there = one / Path(finished.paths.run).name, other / Path(finished.paths.run).name
    shutil.copytree(finished.paths.run, run)
    shutil.rmtree(run / "evaluation", ignore_errors=True)
    first = replace(OPTIONS, methods=("target_full", "native_kv"))
    scored = evaluate(run / "evaluation", first).new
    monkeypatch.setattr(script, "FOLDER", tmp_path / "real_small")
    assert script.publish(one, script.FOLDER / "published") == []
    assert script.main(["--restore", str(other)]) == 0 and script.restore(script.FOLDER / "published", other) == []
    assert str(tmp_path) not in (there / "config.yaml").read_text(encoding="utf-8")
    for stage in ("cartographer", "allocator"):
        assert load_artifact(there, stage).digest == load_artifact(run, stage).digest
    with pytest.raises(ArtifactError, match="no finished compiler"):
        load_artifact(there, "compiler")
    again = evaluate(there / "evaluation", replace(OPTIONS, methods=("target_full", "native_kv", "random")))
    assert again.kept == scored and again.new == scored // 2
    cards = [script.copy_summaries(folder, tmp_path / name) or json.loads((tmp_path / name / f"{run.name}.json").read_text())["cards"]
             for folder, name in ((one, "a"), (other, "b"))]  # fmt: skip
    assert cards[0] == cards[1] and "compiler" in cards[0]
    card = json.loads((run / "cartographer/card.json").read_text())
    (run / "cartographer/card.json").write_text(json.dumps({**card, "copied_from": "base"}))
    assert script.publish(one, script.FOLDER / "published") == []
    published = script.FOLDER / "published" / run.name
    assert not (published / "cartographer").exists() and (published / "cards/cartographer.json").is_file()
    assert (published / "allocator").is_dir()
    monkeypatch.setattr(script, "WEIGHTS", 1)
    assert script.publish(one, script.FOLDER / "published") == []
    assert not (published / "allocator").exists() and (published / "cards/allocator.json").is_file(), "no weights, but what they were"
    shutil.rmtree(there)
    (other / "another").mkdir()
    assert "take" in script.publish(other, script.FOLDER / "published")[0].lower() and (script.FOLDER / "published" / run.name).is_dir()
