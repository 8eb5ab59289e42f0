"""The evaluation end to end on a tiny pair: all methods, all three kinds of task, resume, refusals, tables from its records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from acct.cache import mounted
from acct.errors import ArtifactError, ConfigError, InterfaceError, ModelError
from acct.evaluation import run
from acct.evaluation.run import EvaluationOptions, run_evaluation
from acct.evaluation.scoring import ScoringRules, score_batch, stop_ids
from acct.methods.prepared import Prepared
from acct.methods.registry import DEFAULT, METHODS, get_method
from acct.reporting.intervals import Bootstrap
from acct.reporting.records import SCHEMA, read_records
from acct.reporting.write import write_tables
from tests.evaluation.tiny_run import interface_for, sample, samples, tiny_pair

OPTIONS = EvaluationOptions(batch=3, scoring=ScoringRules(max_new_tokens=3), bootstrap=Bootstrap(200), check_examples=3)
TEN = OPTIONS.methods


def evaluate(folder: Path, options: EvaluationOptions = OPTIONS, retention: float = 0.5, **changes):
    pair = tiny_pair("llama")
    interface = interface_for(pair, retention)
    return run_evaluation("tiny", pair, interface, samples(), folder, options, show_progress=False, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "tiny" / "tiny_llama" / "evaluation"
    report = evaluate(folder)
    assert report.new == 3 * 5 * len(TEN) and report.kept == 0
    return folder


def scores(folder: Path) -> pd.DataFrame:
    columns = ["task", "method", "example", "prediction", "score", "nll_sum", "tokens", "context_tokens", "mounted_bytes", "prompt_hash"]
    frame = read_records(folder).frame
    return frame.sort_values(["task", "method", "example"]).reset_index(drop=True)[columns]


def test_all_methods_on_all_kinds_of_task(finished: Path) -> None:
    records = read_records(finished)
    assert list(records.frame.columns) == list(SCHEMA)
    assert records.frame.groupby(["task", "method"]).size().eq(5).all()
    assert set(records.frame["method"]) == set(DEFAULT) < set(METHODS)
    sparse = records.frame[records.frame["budget_bytes"] > 0]
    assert (sparse["mounted_bytes"].sum() / sparse["budget_bytes"].sum()) <= 1.05
    by_task = records.frame.groupby("task")["nll_sum"].apply(lambda column: column.notna().all())
    assert by_task.to_dict() == {"boolq": True, "search_qa": False, "wikitext": True}
    provenance = json.loads((finished / "provenance.json").read_text())
    counts = provenance["capacities"]["counts"]
    assert (len(counts), len(counts[0])) == (3, 3) and len({slots for layer in counts for slots in layer}) > 1
    assert provenance["seconds"]["source"] > 0 and provenance["mounted_bytes_ratio"] <= 1.05 and "peak_memory_bytes" in provenance


def test_records_do_not_depend_on_the_batch_size(finished: Path, tmp_path: Path) -> None:
    evaluate(tmp_path, replace(OPTIONS, batch=16))
    pd.testing.assert_frame_equal(scores(tmp_path), scores(finished), rtol=1e-3)


def test_native_kv_equals_target_full_at_retention_1(tmp_path: Path) -> None:
    evaluate(tmp_path, replace(OPTIONS, methods=("target_full", "native_kv")), retention=1.0)
    frame = scores(tmp_path).drop(columns="mounted_bytes")
    full, native = (frame[frame["method"] == name].drop(columns="method").reset_index(drop=True) for name in ("target_full", "native_kv"))
    pd.testing.assert_frame_equal(full, native, rtol=1e-3)


def test_killed_run_continues_to_the_same_records(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def failing(*arguments, **more):
        nonlocal calls
        calls += 1
        if calls == 14:
            raise KeyboardInterrupt
        return score_batch(*arguments, **more)

    monkeypatch.setattr(run, "score_batch", failing)
    with pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path)
    assert not (tmp_path / "records.parquet").exists()
    part = tmp_path / "parts" / "search_qa.jsonl"
    part.write_bytes(part.read_bytes() + b'{"direction": "tin')  # the line in which a kill came
    report = evaluate(tmp_path)
    assert report.kept > 0 and report.new + report.kept == 3 * 5 * len(TEN)
    pd.testing.assert_frame_equal(scores(tmp_path), scores(finished))
    again = evaluate(tmp_path)
    assert again.new == 0


def test_methods_can_be_added_later(finished: Path, tmp_path: Path) -> None:
    evaluate(tmp_path, replace(OPTIONS, methods=("target_full", "acct")))
    report = evaluate(tmp_path)
    assert report.new == 3 * 5 * (len(TEN) - 2)
    pd.testing.assert_frame_equal(scores(tmp_path), scores(finished), rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "field"),
    [({"retention": 0.25}, "retention"), ({"options": replace(OPTIONS, seed=1)}, "seed"), ({"configuration": {"data": "b"}}, "data"),
     ({"options": replace(OPTIONS, scoring=ScoringRules(max_new_tokens=4))}, "max_new_tokens"), ({"variant": "uniform"}, "variant")],
)  # fmt: skip
def test_records_of_another_configuration_refuse_and_name_the_field(tmp_path: Path, change: dict, field: str) -> None:
    few = replace(OPTIONS, methods=("no_context",))
    evaluate(tmp_path, few, configuration={"data": "a"})
    changed = {"configuration": {"data": "a"}, **change}
    if "options" in changed:
        changed["options"] = replace(changed["options"], methods=("no_context",))
    with pytest.raises(ArtifactError, match=f"another configuration: {field} was"):
        evaluate(tmp_path, **{"options": few, **changed})
    evaluate(tmp_path, **{"options": few, **changed}, restart=True)


def test_another_sample_refuses(tmp_path: Path) -> None:
    pair = tiny_pair("llama")
    few = replace(OPTIONS, methods=("no_context",))
    run_evaluation("tiny", pair, interface_for(pair), {"search_qa": sample()}, tmp_path, few, show_progress=False)
    with pytest.raises(ArtifactError, match=r"sample\.search_qa was"):
        run_evaluation("tiny", pair, interface_for(pair), {"search_qa": sample(seed=1)}, tmp_path, few, show_progress=False)


def test_nothing_is_scored_when_the_interface_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments, **more):
        raise InterfaceError("example 0: not the native run")

    monkeypatch.setattr(run, "interface_check", broken)
    with pytest.raises(InterfaceError):
        evaluate(tmp_path)
    assert not list((tmp_path / "parts").glob("*.jsonl"))


def test_scoring_leaves_the_cache_so_that_generation_after_it_is_the_same() -> None:
    """Case 1: a scoring helper advanced a shared cache through the gold answer, then generated from it."""
    pair, one, choice = tiny_pair("llama"), sample(), sample("choice")
    prepared = Prepared(pair, interface_for(pair), one.examples, one.strangers())
    mount = get_method("acct").mount(prepared)
    rules = OPTIONS.scoring
    fresh = score_batch(mount, one, one.examples, pair.tokenizer, rules)
    score_batch(mount, choice, choice.examples, pair.tokenizer, rules)
    assert score_batch(mount, one, one.examples, pair.tokenizer, rules) == fresh
    with mounted(mount.adapter, mount.context, 5) as cache:
        assert cache.native_width == 0


def test_nan_scores_stop_the_run() -> None:
    pair, one = tiny_pair("llama"), sample("perplexity")
    prepared = Prepared(pair, interface_for(pair), one.examples, one.strangers())
    mount = get_method("acct").mount(prepared)
    mount.context.values.fill_(float("nan"))
    with pytest.raises(ModelError, match="NaN"):
        score_batch(mount, one, one.examples, pair.tokenizer, OPTIONS.scoring)


def test_one_document_leaves_wrong_document_out(tmp_path: Path) -> None:
    pair = tiny_pair("llama")
    only = {"search_qa": sample(lengths=(9,))}
    report = run_evaluation("tiny", pair, interface_for(pair), only, tmp_path, OPTIONS, show_progress=False)
    assert "wrong_document" not in report.sheet.methods and not report.validity.valid
    assert any("Wrong document was not run" in line for line in report.lines())


def test_stop_ids_join_the_model_and_the_tokenizer() -> None:
    pair = tiny_pair("llama")
    assert stop_ids(pair.target, pair.tokenizer) == (2,)


def test_options_are_checked() -> None:
    for wrong in ({"methods": ()}, {"methods": ("acct", "acct")}, {"batch": 0}):
        with pytest.raises(ConfigError):
            EvaluationOptions(**wrong)


def test_tables_from_a_run(finished: Path) -> None:
    root = finished.parents[2]
    written = write_tables(root, "tiny", retention=0.5, bootstrap=Bootstrap(200))
    texts = {path.suffix: path.read_text() for path in written.files if path.stem == "table1"}
    assert {path.stem for path in written.files} == {"table1", "significance", "nll_gap"}
    assert texts[".csv"].splitlines()[0] == "direction,task,metric,method,value,lower,upper,relative,gap_closed,examples"
    assert len(texts[".csv"].splitlines()) == 1 + 3 * len(TEN)
    assert texts[".md"].count("Provenance:") == 1 and "| Target Full |" in texts[".md"] and "INVALID" in texts[".md"]
    assert r"\bottomrule" in texts[".tex"]
    assert {path.name: path.read_text() for path in write_tables(root, "tiny", retention=0.5, bootstrap=Bootstrap(200)).files} == {
        path.name: path.read_text() for path in written.files
    }
