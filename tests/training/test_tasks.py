"""The losses of the stages: what they read, what they keep, and the figures that they report."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy import stats

from acct.errors import ConfigError, UnknownName
from acct.losses.compilation import last_rows
from acct.native import read_native
from acct.training import cost
from acct.training.allocation import AllocationTask
from acct.training.artifacts import load_artifact
from acct.training.compilation import CompilationTask
from acct.training.loop import seeded
from acct.training.modules import load_cartographer, load_compiler, make_interface, new_cartographer
from acct.training.run import frozen_part
from acct.training.scoring import ScoringTask, kept_share, rank_correlation
from acct.training.session import Examples, open_session
from acct.types import TokenBatch
from tests.training.conftest import tiny


@pytest.fixture(scope="module")
def session(finished):
    with open_session(finished, record=False) as opened:
        yield opened


def compilation(session, cache_bytes=0.0):
    artifact = load_artifact(session.run, "compiler")
    compiler = load_compiler(session.config, session.pair.geometry, artifact, session.device)
    part = frozen_part(load_artifact(session.run, "selections"), "train", session)
    task = CompilationTask(session, session.train, part, cache_bytes)
    task.bridge, task.residual = compiler.bridge, compiler.residual.requires_grad_(True)
    return task, compiler


def test_rank_correlation_is_spearmans_on_the_prefix():
    generator = torch.Generator().manual_seed(0)
    scores, utilities = torch.randn(2, 3, 12, generator=generator), torch.rand(2, 3, 12, generator=generator)
    found = rank_correlation(scores, utilities, torch.tensor([12, 7]))
    for row, n in enumerate((12, 7)):
        for unit in range(3):
            expected = stats.spearmanr(scores[row, unit, :n], utilities[row, unit, :n]).statistic
            assert float(found[row, unit]) == pytest.approx(expected, abs=1e-12)


def test_kept_share_by_hand():
    utilities = torch.tensor([[[4.0, 3.0, 2.0, 1.0, 9.0]]])  # the last position is tail
    scores = torch.tensor([[[0.1, 0.9, 0.8, 0.2, 5.0]]])
    share = kept_share(scores, utilities, torch.tensor([4]), torch.tensor([2]))
    assert float(share) == pytest.approx((3 + 2) / (4 + 3))
    assert float(kept_share(utilities, utilities, torch.tensor([4]), torch.tensor([2]))) == 1.0


def test_scoring_loss_repeats_under_one_seed_and_trains_the_cartographer(session):
    module = new_cartographer(session.config, session.pair.geometry)
    task = ScoringTask(session, session.train, module)
    values = []
    for _ in range(2):
        with seeded(3, 5):
            loss, terms = task([0, 1, 2], 0)
        values.append(float(loss.detach()))
    loss.backward()
    assert values[0] == values[1] and 0 < terms["valid_pairs"] <= 1
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_answers_never_reach_the_source(session, monkeypatch):
    import acct.state_cache as module

    seen: list[TokenBatch] = []
    read = module.read_source
    monkeypatch.setattr(module, "read_source", lambda adapter, batch, rows: seen.append(batch) or read(adapter, batch, rows))
    artifact = load_artifact(session.run, "cartographer")
    cartographer = load_cartographer(session.config, session.pair.geometry, artifact, session.device)
    interface = make_interface(session.config, session.pair.geometry, cartographer, None)
    others = Examples(tuple(replace(item, answer_ids=(7, 8, 9)) for item in session.train.items), session.train.pad_id)
    values = []
    for examples in (session.train, others):
        from acct.allocator.allocator import Allocator

        allocator = Allocator(session.pair.geometry.units)
        loss, _ = AllocationTask(session, examples, interface, allocator)([0, 1])
        loss.backward()
        values.append(float(loss.detach()))
        assert allocator.preferences.grad.abs().sum() > 0 and float(allocator.preferences.grad.sum()) == pytest.approx(0, abs=1e-5)
    assert values[0] != values[1]
    first, second = seen
    assert torch.equal(first.context_ids, second.context_ids) and torch.equal(first.query_ids, second.query_ids)
    for index in (0, 1):
        length = int(first.query_lengths[index])
        assert first.query_ids[index, :length].tolist() == list(session.train.items[index].query_ids)


def test_output_divergence_is_added_by_its_weight(session, monkeypatch):
    from acct.allocator.allocator import Allocator

    monkeypatch.setattr(session.config.allocator, "output_kl_weight", 0.5)
    interface = make_interface(session.config, session.pair.geometry, new_cartographer(session.config, session.pair.geometry).eval(), None)
    loss, terms = AllocationTask(session, session.train, interface, Allocator(session.pair.geometry.units))([0, 1, 2])
    assert terms["output_kl"] > 0
    assert float(loss.detach()) == pytest.approx(terms["answer_nll"] + 0.5 * terms["output_kl"], rel=1e-6)


def test_a_training_step_compiles_what_the_compiler_compiles(session):
    from acct.source import read_context

    task, compiler = compilation(session)
    indices = [3, 0, 5]
    keys, values = task.compiled(task.frozen(indices))
    batch = session.train.batch(indices)
    states = read_context(session.pair.source, batch.context_ids, batch.context_lengths)
    whole = compiler(states, task.selections.of(indices, "cpu"))
    assert torch.allclose(keys, whole.keys, atol=1e-6) and torch.allclose(values, whole.values, atol=1e-6)


def test_kept_batches_give_the_same_loss_and_stay_within_their_memory(session):
    plain, _ = compilation(session)
    kept, _ = compilation(session, 1e9)
    first = [float(task([1, 2, 4], 0)[0].detach()) for task in (plain, kept, kept)]
    assert first[0] == first[1] == first[2]
    assert len(kept._cache) == 1 and not plain._cache
    assert kept._room == 1e9 - next(iter(kept._cache.values())).bytes()
    small, _ = compilation(session, 1000.0)
    assert float(small([1, 2, 4], 0)[0].detach()) == first[0] and not small._cache


def test_batched_terms_are_the_mean_over_examples(session):
    task, _ = compilation(session)
    _, together = task([0, 1, 2], 0)
    apart = [task([index], 0)[1] for index in (0, 1, 2)]
    for name, value in together.items():
        assert value == pytest.approx(sum(terms[name] for terms in apart) / 3, rel=2e-4, abs=1e-6), name


def test_a_continuation_lengthens_what_both_terms_look_at_and_nothing_of_it_reaches_the_source(session, monkeypatch):
    (short, _), (long, _) = compilation(session), compilation(session)
    long.settings = replace(long.settings, continuation=True, behaviour_positions=16)
    seen = []
    original = type(session.states).context
    monkeypatch.setattr(type(session.states), "context", lambda self, *given: (seen.append(given[1].shape), original(self, *given))[1])
    before, after = short.freeze([0, 1]), long.freeze([0, 1])
    assert seen[0] == seen[1], "the source reads the same context"
    further = after.query_lengths - before.query_lengths
    assert (further > 0).all() and (further <= session.config.supervision.continuation_rows).all()
    torch.testing.assert_close(after.native_keys, before.native_keys, rtol=1e-4, atol=1e-5)
    assert after.teacher_attention.queries.shape[3] == min(session.config.supervision.query_rows, long.settings.attention_positions)
    terms = long.terms(after, *long.compiled(after))
    assert terms["behaviour"] > 0 and not torch.isclose(terms["behaviour"], short.terms(before, *short.compiled(before))["behaviour"])
    native = long.terms(after, after.native_keys.float(), after.native_values.float())
    assert native["behaviour"].abs() < 1e-5 and native["attention"].abs() < 1e-5


def test_further_questions_take_turns_under_the_behaviour_term_only(session, monkeypatch):
    task, _ = compilation(session, 1e9)
    items = list(task.examples.items)
    items[0] = replace(items[0], further=((items[2].query_ids, items[2].answer_ids), (items[3].query_ids, items[3].answer_ids)))
    items[1] = replace(items[1], further=((items[4].query_ids, items[4].answer_ids),))
    task.examples = replace(task.examples, items=tuple(items))
    monkeypatch.setattr(session.config.compiler, "further_questions", 2)
    task.epoch_steps = 5
    own = task.frozen([0, 1, 2])
    asked = [[own.query_ids[row, : own.query_lengths[row]].tolist() for row in range(3)]]
    for epoch in range(1, 4):
        frozen = task.turned(own, [0, 1, 2], epoch)
        asked.append([frozen.query_ids[row, : frozen.query_lengths[row]].tolist() for row in range(3)])
        native = task.query_logits(frozen, frozen.native_keys, frozen.native_values)
        torch.testing.assert_close(frozen.teacher_logits, native)
    text = [list(items[i].query_ids + items[i].answer_ids) for i in range(5)]
    assert [row[0] for row in asked] == [asked[0][0], text[2], text[3], asked[0][0]]
    assert [row[1] for row in asked] == [asked[0][1], text[4], asked[0][1], text[4]]
    assert all(row[2] == asked[0][2] for row in asked), "no further question: always its own"
    assert task.turned(own, [0, 1, 2], 0) is own
    _, first = task([0, 1, 2], 4)
    _, second = task([0, 1, 2], 5)
    assert first["behaviour"] != pytest.approx(second["behaviour"], rel=1e-3)
    assert {name for name in first if first[name] != second[name]} == {"behaviour"}
    with torch.no_grad():
        native = task.terms(frozen, frozen.native_keys.float(), frozen.native_values.float())
    assert abs(float(native["behaviour"])) < 1e-5
    assert task.frozen([0, 1, 2]).query_ids is own.query_ids, "what is kept is the examples' own"
    assert task.examples.further_digest() != session.train.further_digest()


@pytest.mark.parametrize("continuation", [False, True])
def test_a_full_teacher_is_the_target_that_has_read_everything(session, continuation):
    kept, full = compilation(session)[0], compilation(session)[0]
    kept.settings = replace(kept.settings, continuation=continuation)
    full.settings = replace(kept.settings, teacher="full")
    before, after = kept.freeze([0, 1, 3]), full.freeze([0, 1, 3])
    target, batch = session.pair.target, session.train.batch([0, 1, 3])
    tokens = TokenBatch(batch.context_ids, batch.context_lengths, after.query_ids.cpu(), after.query_lengths.cpu())
    plain = read_native(target, tokens, logits=True).logits
    at, valid = last_rows(after.query_lengths, full.settings.behaviour_positions)
    expected = plain.gather(1, at.clamp(min=0)[..., None].expand(-1, -1, plain.shape[-1]))
    torch.testing.assert_close(after.teacher_logits[valid], expected[valid], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(before.teacher_logits[valid], expected[valid], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(full.taught(after, [0, 1, 3]).teacher_logits, after.teacher_logits)
    for name in ("native_keys", "native_values", "source_keys"):
        assert torch.equal(getattr(before, name), getattr(after, name)), name


def test_further_data_sets_stand_evenly_among_the_training_examples(finished, tmp_path):
    given = [f"paths.data={finished.paths.data}", "+data.also={trivia_qa: 0.33, boolq: 0.17}", "training.cartographer.examples=12"]
    with open_session(tiny(tmp_path, *given), record=False) as mixed:
        tasks = [item.task for item in mixed.train.items]
        assert {name: tasks.count(name) for name in set(tasks)} == {"search_qa": 6, "trivia_qa": 4, "boolq": 2}
        half = [item.task for item in mixed.train.first(6).items]
        assert {name: half.count(name) for name in set(half)} == {"search_qa": 3, "trivia_qa": 2, "boolq": 1}
        assert [item.id for item in mixed.train.items if item.task == "search_qa"] == [
            item.id for item in finished_examples(finished)[:6]
        ], "those of data.dataset keep their order"
        assert mixed.base_identity("allocator")["data.also"] == {"trivia_qa": 0.33, "boolq": 0.17}
        assert {item.task for item in mixed.held_out.items} == {"search_qa"}
    with pytest.raises(ConfigError, match=r"data\.also gives 1\.1 of the training examples to other sets than search_qa"):
        tiny(tmp_path, "+data.also={trivia_qa: 0.6, boolq: 0.5}")
    with pytest.raises(ConfigError, match=r"data\.also names search_qa, which is data\.dataset already"):
        tiny(tmp_path, "+data.also={search_qa: 0.2}")
    with pytest.raises(UnknownName, match=r"data\.also"):
        tiny(tmp_path, "+data.also={serach_qa: 0.2}")


def finished_examples(finished):
    with open_session(finished, record=False) as opened:
        return opened.train.items


def test_native_states_in_place_of_compiled_ones_cost_nothing(session):
    task, _ = compilation(session)
    frozen = task.frozen([0, 1])
    terms = task.terms(frozen, frozen.native_keys, frozen.native_values)
    assert all(abs(float(term)) < 1e-5 for term in terms.values())


def test_a_term_without_weight_is_not_computed(session, monkeypatch):
    monkeypatch.setattr(session.config.compiler, "behaviour", 0.0)
    monkeypatch.setattr(session.config.compiler, "attention", 0.0)
    task, _ = compilation(session)
    loss, terms = task([0, 1], 0)
    assert set(terms) == {"key_direction", "key_scale", "value"}
    assert float(loss.detach()) == pytest.approx(terms["key_direction"] + 1e-4 * terms["key_scale"] + terms["value"], rel=1e-5)


def test_statistics_do_not_depend_on_the_batches(session):
    task, _ = compilation(session)
    one = task.statistics([[index] for index in range(6)], "bridge")
    all_at_once = task.statistics([list(range(6))], "bridge")
    assert torch.allclose(one.cross_products, all_at_once.cross_products, rtol=1e-4, atol=1e-2)
    assert torch.equal(one.rows, all_at_once.rows)  # states of other batches differ by float32 rounding, rows do not


def test_the_cost_of_a_step_is_a_ratio_of_medians_and_leaves_everything_as_it_was(session, monkeypatch):
    task, compiler = compilation(session)
    before = {name: value.clone() for name, value in compiler.state_dict().items()}
    frozen, calls = [], []
    freeze = task.freeze
    monkeypatch.setattr(task, "freeze", lambda indices: frozen.append(indices) or freeze(indices))
    ticks = iter([9, 9, 9, 2, 12, 6, 4, 20, 10, 3, 90, 60])  # warm-up, then three rounds of forward, fresh and kept step

    def timed(run):
        calls.append(run())
        return float(next(ticks)), None

    monkeypatch.setattr(cost, "timed", timed)
    found = cost.compiler_step_cost(task, [0, 1])
    assert (found.forward_milliseconds, found.fresh, found.kept, found.examples) == (3.0, pytest.approx(20 / 3), pytest.approx(10 / 3), 2)
    assert len(calls) == 12 and frozen == [[0, 1]] * 5, "once for what is kept, then once in each fresh step"
    assert "6.7 target forwards of the same 2 examples, 3.3" in found.line()
    assert all(torch.equal(value, before[name]) for name, value in compiler.state_dict().items())
    assert all(parameter.grad is None for parameter in task.residual.parameters())
