"""Every score against its dense twin, blocks against the whole, and what the compressors do at the edges."""

from __future__ import annotations

import pytest
import torch

from acct.allocator.budget import BudgetRule
from acct.config.compressors import CompressorsConfig
from acct.errors import ConfigError
from acct.methods.compressors import expected_attention, observed_attention, pyramidkv, snapkv
from acct.methods.compressors.observed import Observed, attention_rows, observe
from acct.methods.prepared import Prepared
from tests.evaluation.tiny_run import interface_for, sample, tiny_pair
from tests.reference import compressors as reference
from tests.tiny import FAMILIES
from tests.tolerances import COMPRESSOR_SCORES

ROW = 2  # N = 15 of the five contexts; its neighbours are longer and shorter, so the row is padded
BUDGET = BudgetRule(0.5, 2).resolve(15)


def seen(family: str, query_aware: bool) -> tuple[Observed, reference.Run, Prepared]:
    """The row as the compressors see it, out of a padded batch, and a stock run of the same tokens alone."""
    pair, examples = tiny_pair(family), sample().examples
    prepared = Prepared(pair, interface_for(pair), examples)
    context, query = (list(ids) for ids in (examples[ROW].context_ids, examples[ROW].query_ids))
    ids = torch.tensor(context + query if query_aware else context)
    observed = observe(pair.target, prepared.observed, ROW, len(context), len(ids))
    return observed, reference.run(pair.target.model, ids), prepared


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.flatten(0, 1), atol=COMPRESSOR_SCORES, rtol=COMPRESSOR_SCORES)


@pytest.mark.parametrize("query_aware", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_snapkv_is_its_dense_twin(family: str, query_aware: bool) -> None:
    observed, run, _ = seen(family, query_aware)
    settings = CompressorsConfig(window=6, kernel=3, window_share=0.25)  # k = 8, so 2 context tokens at most
    window = 6 if query_aware else 2
    found = snapkv.score(observed, BUDGET, settings)
    before = observed.length - window
    close(found[:, :before], reference.snapkv(run, window, 3))
    assert bool(found[:, before:].isinf().all()) and bool(found[:, :before].isfinite().all())


@pytest.mark.parametrize("query_aware", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_observed_attention_is_its_dense_twin(family: str, query_aware: bool) -> None:
    observed, run, _ = seen(family, query_aware)
    close(observed_attention.score(observed, BUDGET, CompressorsConfig()), reference.observed_attention(run))


@pytest.mark.parametrize("options", [(True, True, 0.0), (False, True, 0.25), (True, False, 0.0)])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_expected_attention_is_its_dense_twin(family: str, options: tuple[bool, bool, float]) -> None:
    covariance, value_norm, epsilon = options
    observed, run, prepared = seen(family, query_aware=covariance)
    settings = CompressorsConfig(future_positions=9, sinks=3, covariance=covariance, value_norm=value_norm, epsilon=epsilon)
    found = expected_attention.score(observed, BUDGET, settings)
    close(found[:, 3:], reference.expected_attention(run, prepared.pair.target.model, 9, 3, covariance, value_norm, epsilon))
    assert bool(found[:, :3].isinf().all())


@torch.no_grad()
def test_blocks_change_nothing_and_bound_the_memory() -> None:
    observed, *_ = seen("llama", True)
    for rule in (snapkv.SNAPKV, observed_attention.OBSERVED, expected_attention.EXPECTED):
        whole, parts = (rule.score(observed, BUDGET, CompressorsConfig(window=6, block=block)) for block in (2**24, 7))
        torch.testing.assert_close(parts, whole, atol=COMPRESSOR_SCORES, rtol=COMPRESSOR_SCORES)
    group, length = observed.queries_pre.shape[1], observed.length
    sizes = [weights.numel() for _, _, weights in attention_rows(observed, 0, 3 * group * length)]
    assert max(sizes) == 3 * group * length and sum(sizes) == len(observed.keys) * group * length**2
    weights = torch.cat([part for _, _, part in attention_rows(observed, 4, 2**24)])
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1])) and bool((weights.triu(5) == 0).all())


@torch.no_grad()
def test_context_scores_do_not_depend_on_the_query_unless_asked_to() -> None:
    pair, examples = tiny_pair(), list(sample().examples)
    other = [type(e)(**{**vars(e), "query_ids": tuple(reversed(e.query_ids))}) for e in examples]
    for length in ("context", "both"):
        found = []
        for rows in (examples, other):
            prepared = Prepared(pair, interface_for(pair), rows)
            n, q = len(rows[0].context_ids), len(rows[0].query_ids)
            observed = observe(pair.target, prepared.observed, 0, n, n if length == "context" else n + q)
            found.append(snapkv.score(observed, BudgetRule(0.5, 2).resolve(n), CompressorsConfig(window=3))[:, : n - 3])
        assert torch.allclose(*found, atol=1e-5) == (length == "context")


def test_the_window_never_takes_more_than_its_share() -> None:
    observed, *_ = seen("qwen3", False)
    aware, *_ = seen("qwen3", True)  # Q = 5
    cases = [(64, 0.5, 4, 4), (2, 0.5, 2, 0), (64, 0.0, 1, 0), (64, 1.0, 8, 8), (6, 1.0, 6, 1)]
    for window, share, alone, with_query in cases:
        settings = CompressorsConfig(window=window, window_share=share)
        assert snapkv.context_window(observed, BUDGET, settings) == alone
        assert snapkv.context_window(aware, BUDGET, settings) == with_query


def test_pyramid_by_hand() -> None:
    """rho = 1/4, N = 8,000, tau = 32: k = 2,000; beta = 20 gives 3,900 down to 100 in kvpress's reading."""
    long, short = (BudgetRule(0.25, 32).resolve(n) for n in (8000, 400))
    found = pyramidkv.layer_capacities(5, long, 64, CompressorsConfig())
    assert found is not None and found.tolist() == pytest.approx([3900, 2950, 2000, 1050, 100])
    assert pyramidkv.layer_capacities(5, short, 64, CompressorsConfig()) is None  # 100 / 20 < 64: kvpress falls back to SnapKV
    beside = pyramidkv.layer_capacities(5, short, 40, CompressorsConfig(pyramid="beside_window"))
    assert beside is not None and beside.tolist() == pytest.approx([157, 128.5, 100, 71.5, 43])  # 40 + 117 ... 40 + 3
    wide = pyramidkv.layer_capacities(3, BudgetRule(0.75, 32).resolve(400), 40, CompressorsConfig(pyramid="beside_window"))
    assert wide is not None and wide.tolist() == pytest.approx([400, 300, 200])  # the first layer holds everything


@torch.no_grad()
def test_pyramid_keeps_the_budget_and_falls_over_layers() -> None:
    observed, *_ = seen("llama", False)
    settings = CompressorsConfig(pyramid="beside_window", window=2, beta=4)
    counts = pyramidkv.counts(observed, BUDGET, settings).view(3, 3)
    assert int(counts.sum()) == 9 * (8 - 2) and bool((counts[:-1] >= counts[1:]).all()) and int(counts[0, 0]) > int(counts[2, 0])


@pytest.mark.parametrize(("field", "value"), [("kernel", 4), ("window", 0), ("window_share", 1.5), ("pyramid", "steep"), ("sinks", -1)])
def test_wrong_settings_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"evaluation.compressors.{field}"):
        CompressorsConfig(**{field: value})
