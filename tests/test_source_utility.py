"""What the source itself would miss, and a Cartographer that adds it up (`acct.source_utility`)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acct.cartographer import Cartographer
from acct.cli.evaluation import evaluate_direction
from acct.errors import InputError
from acct.latency.stages import random_states
from acct.models.batching import last_query_places
from acct.models.registry import adapter_for
from acct.source import load_states, read_query, read_source, save_states
from acct.source_utility import SMALLEST, after_context, utility_features
from acct.state_cache import StateCache
from acct.state_store import StateStore
from acct.supervision.teacher import utility_targets
from acct.training.artifacts import load_artifact
from acct.training.modules import load_interface
from acct.training.run import train
from acct.training.session import load_configured_pair
from acct.transfer import ContextTransfer
from tests.test_cartographer import PAIR, build, draw
from tests.tiny import FAMILIES, ROPE_KINDS, tiny_batch, tiny_model
from tests.tolerances import REUSED_QUERY, SCORES, SOURCE_UTILITY
from tests.training.conftest import finished, tiny  # noqa: F401 (a fixture)

ROWS = 4


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_the_utilities_that_a_teacher_without_a_continuation_has(family):
    adapter, batch = adapter_for(tiny_model(family)), tiny_batch(1, context=(9, 6, 12), query=(5, 2, 4))
    found = read_source(adapter, batch, ROWS)
    taught = utility_targets(adapter, batch, torch.Generator(), layers=adapter.geometry.layers, query_rows=ROWS, continuation_rows=0)
    assert found.query_utilities is not None and found.query_utilities.dtype == torch.float32
    features = [utility_features(one, batch.context_lengths) for one in (found.query_utilities, taught.utilities)]
    torch.testing.assert_close(*features, rtol=0, atol=SOURCE_UTILITY)
    assert bool((found.query_utilities[1, :, 6:] == 0).all()) and float(found.query_utilities.max()) > 0
    plain = read_source(adapter, batch)
    assert plain.query_utilities is None
    for name in ("context_hidden", "taps", "keys_pre", "values", "query_hidden"):
        assert torch.equal(getattr(found, name), getattr(plain, name)), "measuring changes nothing else"


@pytest.mark.parametrize("rope", ROPE_KINDS[:2])
def test_another_query_on_stored_states_gives_the_same(rope, tmp_path):
    adapter, batch = adapter_for(tiny_model("qwen3", rope=rope)), tiny_batch(2, context=(9, 6, 12), query=(5, 2, 7))
    whole = read_source(adapter, batch, ROWS)
    other = read_source(adapter, tiny_batch(7, context=(9, 6, 12), query=(3, 3, 3)))
    states = replace(read_source(adapter, batch), query_hidden=other.query_hidden, query_lengths=other.query_lengths)
    asked = read_query(adapter, states, batch.query_ids, batch.query_lengths, ROWS)
    scale = float(whole.query_utilities.max())
    torch.testing.assert_close(asked.query_utilities, whole.query_utilities, rtol=0, atol=REUSED_QUERY * scale)
    assert read_query(adapter, asked, batch.query_ids, batch.query_lengths).query_utilities is None, "of another query, or not measured"
    save_states(whole, tmp_path / "states")
    assert torch.equal(load_states(tmp_path / "states").query_utilities, whole.query_utilities)


def test_rows_and_histories_by_hand():
    places, valid = last_query_places(torch.tensor([5, 3]), torch.tensor([4, 1]), 3)
    assert places.tolist() == [[6, 7, 8], [1, 2, 3]] and valid.tolist() == [[True] * 3, [False, False, True]]
    context, query = torch.arange(6.0).view(2, 1, 1, 3, 1), 10 + torch.arange(4.0).view(2, 1, 1, 2, 1)
    joined = after_context(context, query, torch.tensor([3, 1]))[..., 0].flatten(1)
    assert joined[0].tolist() == [0, 1, 2, 10, 11] and joined[1, :3].tolist() == [3, 12, 13]


def test_features_by_hand():
    utilities = torch.tensor([[[1.0, 3.0, 0.0, 9.0], [0.0, 0.0, 0.0, 0.0]]])
    found = utility_features(utilities, torch.tensor([3]))[0]
    mean = 4 / 3
    assert found[0].tolist() == pytest.approx([math.log(u / mean + SMALLEST) for u in (1, 3, 0)] + [0.0])
    assert torch.isfinite(found).all() and found[1].tolist() == pytest.approx([math.log(SMALLEST)] * 3 + [0.0])


def test_the_score_gains_a_weighted_sum_of_them_which_starts_at_their_mean():
    known = PAIR.source.layers * PAIR.source.kv_heads
    started = Cartographer(PAIR, replace(build().shape, utility_units=known)).utility
    assert started.shape == (PAIR.units, known) and bool((started == 1 / known).all())
    module, plain = build(utility_units=known), build()
    plain.load_state_dict({name: value for name, value in module.state_dict().items() if name != "utility"})
    assert sum(value.numel() for value in module.parameters()) == module.shape.parameters(PAIR)
    arguments = draw([9, 6], [3, 4])
    utilities = torch.rand(2, known, arguments[0].shape[1])
    features = utility_features(utilities, arguments[1])
    expected = plain(*arguments) + torch.einsum("pu,bui->bpi", module.utility, features)
    torch.testing.assert_close(module(*arguments, utilities=utilities), expected, atol=SCORES, rtol=1e-6)
    chosen = torch.tensor([[PAIR.units - 1, 0], [2, 1]])
    some = expected.gather(1, chosen[..., None].expand(-1, -1, expected.shape[-1]))
    torch.testing.assert_close(module(*arguments, units=chosen, utilities=utilities), some, atol=SCORES, rtol=1e-6)
    for wrong in (None, utilities[:, :-1]):
        with pytest.raises(InputError, match="Read the source states with utility_rows"):
            module(*arguments, utilities=wrong)


def test_a_cache_gives_what_reading_gives(tmp_path, monkeypatch):
    adapter, batch = adapter_for(tiny_model("qwen2")), tiny_batch(3, context=(9, 6), query=(5, 2))
    cache = StateCache(StateStore(tmp_path, 1, "float32"))
    direct = read_source(adapter, batch, ROWS)
    cache.source(adapter, batch)  # without utilities first, as an earlier run had stored it
    assert cache.absent(adapter, adapter, batch, 0, (), ROWS) == [0, 1]
    with monkeypatch.context() as patch:
        patch.setattr("acct.state_cache.read_source", None)  # the context is not read again
        for _ in range(2):
            found, scale = cache.source(adapter, batch, ROWS).query_utilities, float(direct.query_utilities.max())
            torch.testing.assert_close(found, direct.query_utilities, rtol=0, atol=REUSED_QUERY * scale)
    written = cache.store.written
    cache.source(adapter, batch, ROWS)
    assert cache.store.written == written and cache.source(adapter, batch).query_utilities is None


def test_a_run_that_reads_them(finished, tmp_path):  # noqa: F811
    config = tiny(tmp_path, f"paths.data={finished.paths.data}", f"cartographer.utility_rows={ROWS}")
    found = train(config)
    card = found["cartographer"].card["built_from"]
    assert card["cartographer.utility_rows"] == ROWS and "utility" in found["cartographer"].tensors
    run = Path(finished.paths.run)
    plain = load_artifact(run, "cartographer")
    assert "cartographer.utility_rows" not in plain.card["built_from"] and "utility" not in plain.tensors
    kept = [one.tensors["train.positions"] for one in (found["selections"], load_artifact(run, "selections"))]
    assert not torch.equal(*kept)
    pair = load_configured_pair(config)
    interface = load_interface(config, pair)
    assert interface.utility_rows == ROWS and load_interface(finished, pair).utility_rows == 0
    transfer = ContextTransfer.from_pretrained(config.paths.run)
    states = transfer.read(list(range(5, 60)))
    answer = transfer.generate(states, list(range(5, 12)), max_new_tokens=3)
    assert isinstance(answer, str)
    own = (f"paths.data={finished.paths.data}", f"cartographer.utility_rows={ROWS}")
    again = tiny(tmp_path, *own, "evaluation.methods=[target_full,acct,native_kv]")
    report = evaluate_direction(again)
    assert report.new and set(report.sheet.methods) == {"target_full", "acct", "native_kv"}


def test_timed_states_have_utilities_where_the_cartographer_reads_them():
    geometry, generator = PAIR.source, torch.Generator().manual_seed(0)
    states = random_states(geometry, 12, 3, torch.bfloat16, torch.device("cpu"), generator, True)
    assert states.query_utilities.shape == (1, geometry.layers * geometry.kv_heads, 12) and states.query_utilities.dtype == torch.float32
    module = build(utility_units=states.query_utilities.shape[1])
    arguments = (states.context_hidden, states.context_lengths, states.query_hidden, states.query_lengths)
    assert torch.isfinite(module(*arguments, utilities=states.query_utilities)).all()
