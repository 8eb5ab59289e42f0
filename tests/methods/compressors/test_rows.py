"""Compressors as rows: budget and tail of ACCT, the target's own states, names and settings on their way from the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acct.cli.evaluation import options_of
from acct.config.compressors import CompressorsConfig
from acct.config.root import compose
from acct.errors import ArtifactError
from acct.evaluation.run import EvaluationOptions, run_evaluation
from acct.evaluation.scoring import ScoringRules
from acct.methods.compressors.base import Compressor
from acct.methods.compressors.observed import observe
from acct.methods.prepared import Prepared
from acct.methods.registry import COMPRESSORS, DEFAULT, METHODS, get_method, query_aware
from acct.models.adapter import ModelAdapter
from acct.reporting.intervals import Bootstrap
from acct.reporting.names import COMPRESSORS as ROWS
from acct.reporting.names import METHODS as LABELS
from acct.reporting.records import read_records
from acct.selection import batch_index, unit_index, validate
from tests.evaluation.tiny_run import interface_for, sample, samples, tiny_pair
from tests.tiny import FAMILIES

NAMES = ("snapkv", "pyramidkv", "observed_attention", "expected_attention")
SETTINGS = CompressorsConfig(window=4, sinks=2, pyramid="beside_window", beta=3)


def prepared(family: str = "qwen3", retention: float = 0.5, tail: int = 2, rows: slice = slice(None)) -> Prepared:
    pair = tiny_pair(family)
    return Prepared(pair, interface_for(pair, retention, tail), sample().examples[rows], compressors=SETTINGS)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_budget_tail_and_states_are_the_targets_own(family: str) -> None:
    batch = prepared(family)
    for name in sorted(COMPRESSORS):
        kv = get_method(name).mount(batch).context
        validate(kv.selection)
        lengths = kv.selection.context_lengths
        assert torch.equal(kv.selection.counts.sum(dim=1), batch.pair.geometry.units * batch.interface.rule.mean_capacities(lengths)), name
        assert torch.equal(kv.selection.tails, batch.interface.rule.tails(lengths))
        where = (batch_index(kv.selection), unit_index(kv.selection), kv.selection.positions)
        assert torch.equal(kv.values, batch.native.context_values[where]), name
    assert not {"source", "order", "selection", "compiled"} & set(vars(batch))  # neither the source nor a trained module


@torch.no_grad()
def test_scores_and_native_states_may_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    apart, shared = prepared(), prepared()
    shared.observes = True
    passes: list[Prepared] = []
    given = ModelAdapter.forward
    monkeypatch.setattr(ModelAdapter, "forward", lambda self, *all, **more: (passes.append(self), given(self, *all, **more))[1])
    rows, seen = [], []
    for batch in (apart, shared):
        rows.append(get_method("snapkv").mount(batch).context)
        seen.append(len(passes))
    assert seen == [2, 3]
    assert torch.equal(rows[0].keys, rows[1].keys) and torch.equal(rows[0].values, rows[1].values)
    for name, value in vars(apart.native).items():
        other = getattr(shared.native, name)
        assert value is other is None or torch.equal(value, other), name


@pytest.mark.parametrize(("retention", "tail"), [(1.0, 2), (0.05, 32), (0.25, 0)])
@torch.no_grad()
def test_extreme_budgets(retention: float, tail: int) -> None:
    batch = prepared(retention=retention, tail=tail)
    for name in sorted(COMPRESSORS):
        selection = get_method(name).mount(batch).context.selection
        validate(selection)
        if retention == 1.0:
            assert bool((selection.counts == selection.context_lengths[:, None]).all()), name


@torch.no_grad()
def test_a_row_does_not_depend_on_its_batch() -> None:
    whole, alone = prepared(), prepared(rows=slice(1, 2))
    for name in sorted(COMPRESSORS):
        both, one = (get_method(name).mount(batch).context.selection for batch in (whole, alone))
        assert torch.equal(both.positions[batch_index(both) == 1], one.positions), name


@torch.no_grad()
def test_snapkv_keeps_the_best_by_score() -> None:
    batch = prepared()
    method = get_method("snapkv")
    assert isinstance(method, Compressor)
    selection = method.selection(batch)
    for row, example in enumerate(batch.examples):
        n = len(example.context_ids)
        budget = batch.interface.rule.resolve(n)
        scores = method.rule.score(observe(batch.pair.target, batch.observed, row, n, n), budget, SETTINGS)[:, : budget.prefix]
        for unit in range(selection.units):
            kept = selection.positions[(batch_index(selection) == row) & (unit_index(selection) == unit)].tolist()
            best = scores[unit].topk(budget.mean_capacity - budget.tail).values.min()
            assert all(bool(scores[unit, i] >= best) for i in kept if i < budget.prefix) and kept[-budget.tail :] == [n - 2, n - 1]


def test_names_are_known_off_by_default_and_say_what_they_see() -> None:
    assert {*NAMES, *(f"{name}_query_aware" for name in NAMES)} == COMPRESSORS == set(ROWS) and not COMPRESSORS & set(DEFAULT)
    assert query_aware(["acct", "snapkv", "pyramidkv_query_aware"]) == ("acct", "snapkv_query_aware", "pyramidkv_query_aware")
    for name in COMPRESSORS:
        aware = name.endswith("_query_aware")
        assert METHODS[name].query_aware == aware and LABELS[name].endswith("with query" if aware else "context only")


def test_the_experiment_adds_them_to_the_default_rows() -> None:
    plain, experiment = (compose(overrides).evaluation for overrides in ([], ["experiment=compressors"]))
    assert experiment.methods[: len(plain.methods)] == plain.methods
    assert set(experiment.methods) - set(plain.methods) == COMPRESSORS and plain.compressors == CompressorsConfig()
    given = options_of(compose(["evaluation.methods=[acct,snapkv]", "evaluation.compressors={query_aware: true, window: 8}"]))
    assert given.methods == ("acct", "snapkv_query_aware") and given.compressors.window == 8


def test_records_of_a_finished_run_are_extended_and_settings_are_part_of_them(tmp_path: Path) -> None:
    pair = tiny_pair()

    def evaluate(methods: tuple[str, ...], window: int = 64) -> set[str]:
        options = EvaluationOptions(
            methods, scoring=ScoringRules(max_new_tokens=2), bootstrap=Bootstrap(10), compressors=CompressorsConfig(window=window)
        )
        run_evaluation("tiny", pair, interface_for(pair), samples(), tmp_path, options, show_progress=False)
        return set(read_records(tmp_path).frame["method"])

    assert evaluate(("target_full", "acct")) == {"target_full", "acct"}
    assert evaluate(("snapkv", "snapkv_query_aware")) == {"target_full", "acct", "snapkv", "snapkv_query_aware"}
    evaluate(("target_full",), window=8)  # settings of rows that are not asked for do not matter
    with pytest.raises(ArtifactError, match=r"compressors\.window was 64, now it is 8"):
        evaluate(("pyramidkv",), window=8)
