"""Every method on tiny pairs: what it mounts, and what must be equal to what."""

from __future__ import annotations

import pytest
import torch

from acct.cache import extend, mounted
from acct.errors import ConfigError, InputError, UnknownName
from acct.methods.base import Mount
from acct.methods.prepared import Prepared, Stopwatch, stack, take_rows
from acct.methods.registry import METHODS, get_method
from acct.methods.ridge_map import RidgeMap, parse_ridge
from acct.models.adapter import ModelAdapter
from acct.pipeline import random_order, transfer
from acct.reporting.names import METHODS as LABELS
from acct.reporting.validity import STRICT_CONTROLS
from acct.selection import batch_index, rows, unit_index, validate
from acct.source import read_source
from tests.evaluation.tiny_run import interface_for, sample, tiny_pair
from tests.tiny import FAMILIES
from tests.tolerances import LOGITS


def prepared(family: str = "qwen3", retention: float = 0.5, tail: int = 2, kind: str = "generate", seed: int = 0) -> Prepared:
    pair, one = tiny_pair(family), sample(kind)
    layers = pair.geometry.source.layers
    linear = {name: RidgeMap(pair.geometry, min(asked[0], layers), asked[1]) for name in METHODS if (asked := parse_ridge(name))}
    return Prepared(pair, interface_for(pair, retention, tail, linear_maps=linear), one.examples, one.strangers(), seed)


def last_logits(mount: Mount) -> torch.Tensor:
    with torch.no_grad(), mounted(mount.adapter, mount.context, len(mount.query_lengths)) as cache:
        return extend(mount.adapter, cache, mount.query_ids, mount.query_lengths, at=(mount.query_lengths - 1)[:, None])[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_native_kv_at_retention_1_is_target_full(family: str) -> None:
    whole = prepared(family, retention=1.0)
    full, native = (last_logits(get_method(name).mount(whole)) for name in ("target_full", "native_kv"))
    torch.testing.assert_close(native, full, atol=LOGITS, rtol=LOGITS)
    assert not torch.allclose(last_logits(get_method("acct").mount(whole)), full, atol=1e-2)


@torch.no_grad()
def test_every_method_runs_and_sparse_ones_respect_the_budget() -> None:
    batch = prepared()
    units = batch.pair.geometry.units
    for name in METHODS:
        method = get_method(name)
        if method.applicable(batch.pair) is not None:
            assert name == "raw_source"  # head widths 8 and 16
            continue
        mount = method.mount(batch)
        assert isinstance(mount.adapter, ModelAdapter)
        assert bool(torch.isfinite(last_logits(mount)).all()), name
        if mount.context is not None:
            validate(mount.context.selection)
            kept = mount.context.selection.counts.sum(dim=1)
            lengths = mount.context.selection.context_lengths
            assert torch.equal(kept, units * (lengths if parse_ridge(name) else batch.interface.rule.mean_capacities(lengths))), name


@torch.no_grad()
def test_a_kept_linear_map_is_the_whole_one_at_acct_positions() -> None:
    batch = prepared()
    torch.manual_seed(0)
    for parameter in batch.interface.linear_maps["ridge_1"].parameters():
        parameter.normal_()
    whole, kept = (get_method(name).mount(batch).context for name in ("ridge_1", "ridge_1_kept"))
    assert torch.equal(kept.selection.positions, batch.selection.positions) and len(kept.keys) < len(whole.keys)
    every = list(zip(*(part.tolist() for part in (batch_index(whole.selection), unit_index(whole.selection), whole.selection.positions))))
    place = {slot: row for row, slot in enumerate(every)}
    wanted = zip(*(part.tolist() for part in (batch_index(kept.selection), unit_index(kept.selection), kept.selection.positions)))
    rows = [place[slot] for slot in wanted]
    torch.testing.assert_close(kept.keys, whole.keys[rows])
    torch.testing.assert_close(kept.values, whole.values[rows])


@torch.no_grad()
def test_target_full_and_no_context_use_no_state_of_the_transfer() -> None:
    batch = prepared()
    for name in ("target_full", "source_full", "no_context"):
        get_method(name).mount(batch)
    assert not {"source", "native", "compiled", "selection"} & set(vars(batch))


@torch.no_grad()
def test_methods_share_intermediate_results() -> None:
    batch = prepared()
    for name in ("acct", "native_kv", "random", "bridge_only", "zeros", "noise", "wrong_document"):
        get_method(name).mount(batch)
    kept = [get_method(name).mount(batch).context.selection for name in ("acct", "native_kv", "bridge_only", "zeros", "noise")]
    assert all(torch.equal(kept[0].positions, other.positions) for other in kept)
    assert {"source", "native", "cartographer", "allocator", "compiler"} <= set(batch.clock.seconds)


@torch.no_grad()
def test_one_side_compiled_and_the_other_exact() -> None:
    batch = prepared()
    acct, native, keys, values = (get_method(n).mount(batch).context for n in ("acct", "native_kv", "native_keys", "native_values"))
    assert torch.equal(keys.keys, native.keys) and torch.equal(keys.values, acct.values) and keys.rotated
    assert torch.equal(values.keys, acct.keys) and torch.equal(values.values, native.values) and values.rotated
    assert torch.equal(keys.selection.positions, acct.selection.positions) and not torch.allclose(acct.keys, native.keys)


@torch.no_grad()
def test_bridge_only_leaves_the_residual_out() -> None:
    batch = prepared()
    acct, bridge = batch.compiled, batch.bridged
    assert not torch.allclose(acct.keys, bridge.keys) and not torch.allclose(acct.values, bridge.values)
    plain = batch.interface.compiler.bridge(batch.source, batch.selection)
    torch.testing.assert_close(bridge.values, plain[1])


@torch.no_grad()
def test_random_keeps_the_learned_counts_and_moves_the_positions() -> None:
    batch = prepared()
    learned, drawn = batch.selection, get_method("random").mount(batch).context.selection
    assert torch.equal(learned.counts, drawn.counts) and not torch.equal(learned.positions, drawn.positions)
    states, native = get_method("random").mount(batch).context, batch.native
    where = (batch_index(drawn), unit_index(drawn), drawn.positions)
    assert torch.equal(states.values, native.context_values[where])


def test_random_orders_do_not_depend_on_batch_or_padding() -> None:
    ids = torch.arange(4, 16).repeat(2, 1)
    lengths, prefix = torch.tensor([12, 9]), torch.tensor([10, 7])
    both = random_order(ids, lengths, prefix, 3, seed=1)
    alone = random_order(ids[1:, :9], lengths[1:], prefix[1:], 3, seed=1)
    assert torch.equal(both[1, :, :7], alone[0, :, :7])
    assert torch.equal(both.sort(-1).values, torch.arange(12).expand(2, 3, 12))
    assert bool((both[1, :, 7:] == torch.arange(7, 12)).all())
    assert not torch.equal(both[0, 0], both[0, 1]) and not torch.equal(both, random_order(ids, lengths, prefix, 3, seed=2))


@torch.no_grad()
def test_noise_has_the_moments_of_each_unit_and_no_content() -> None:
    batch = prepared()
    kv, noise = batch.compiled, get_method("noise").mount(batch).context
    unit = (batch_index(kv.selection) == 4) & (unit_index(kv.selection) == 3)
    rows_of = unit.nonzero().flatten()
    real, drawn = kv.values[rows_of], noise.values[rows_of]
    scale = real.std(correction=0) / real.numel() ** 0.5
    assert abs(float(drawn.mean() - real.mean())) < 4 * float(scale)
    assert 0.6 < float(drawn.std() / real.std()) < 1.6
    alone = Prepared(batch.pair, batch.interface, batch.examples[4:5])
    again = get_method("noise").mount(alone).context
    own = (batch_index(noise.selection) == 4).nonzero().flatten()
    torch.testing.assert_close(again.values, noise.values[own], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_zeros_are_zero() -> None:
    batch = prepared()
    states, own = get_method("zeros").mount(batch).context, batch.compiled
    assert states.keys.shape == states.values.shape == own.keys.shape and states.keys.dtype == own.keys.dtype
    assert not bool(states.keys.any()) and not bool(states.values.any())
    with mounted(batch.pair.target, states) as cache, mounted(batch.pair.target, own) as expected:
        assert cache.mounted_bytes() == expected.mounted_bytes()


@torch.no_grad()
def test_wrong_document_is_never_the_own_one_and_keeps_its_positions() -> None:
    batch = prepared()
    for own, other in zip(batch.examples, batch.strangers):
        assert other is not None and other.context_ids != own.context_ids
    wrong = get_method("wrong_document").mount(batch).context
    place = {example.id: row for row, example in enumerate(batch.examples)}
    index = [place[other.id] for other in batch.strangers]
    expected = take_rows(batch.compiled, index)
    assert torch.equal(wrong.selection.context_lengths, batch.compiled.selection.context_lengths[index])
    assert torch.equal(wrong.keys, expected.keys) and torch.equal(wrong.selection.positions, rows(batch.selection, index).positions)


@torch.no_grad()
def test_wrong_document_from_outside_the_batch_equals_the_one_inside() -> None:
    whole = prepared()
    part = Prepared(whole.pair, whole.interface, whole.examples[:2], whole.strangers[:2])
    outside, inside = part.transferred_strangers, take_rows(whole.transferred_strangers, [0, 1])
    assert torch.equal(outside.selection.counts, inside.selection.counts)
    assert torch.equal(outside.selection.positions, inside.selection.positions)
    torch.testing.assert_close(outside.keys, inside.keys, atol=1e-4, rtol=1e-4)


def test_a_sample_of_one_document_has_no_stranger() -> None:
    one = sample(lengths=(8,))
    assert one.strangers() == [None]
    pair = tiny_pair()
    with pytest.raises(InputError, match="at least two"):
        get_method("wrong_document").mount(Prepared(pair, interface_for(pair), one.examples, one.strangers()))


@torch.no_grad()
def test_stack_and_take_are_inverse() -> None:
    kv = prepared().compiled
    both = stack(take_rows(kv, [0, 1, 2]), take_rows(kv, [3, 4]))
    assert torch.equal(both.keys, kv.keys) and torch.equal(both.selection.positions, kv.selection.positions)


@torch.no_grad()
def test_transfer_is_the_evaluated_method_and_says_that_it_is_transferred() -> None:
    batch = prepared()
    kv = transfer(batch.pair, batch.interface, read_source(batch.pair.source, batch.batch))
    assert torch.equal(kv.keys, batch.compiled.keys) and kv.rotated
    assert kv.identity["kind"] == "transferred" and kv.identity["retention"] == "0.5"
    assert kv.identity["target"] == batch.pair.target.fingerprint and any(name.startswith("source.") for name in kv.identity)


@torch.no_grad()
def test_raw_source_runs_where_head_widths_agree() -> None:
    from acct.models.pair import Pair
    from acct.models.registry import adapter_for
    from tests.tiny import tiny_model, tiny_tokenizer

    source = adapter_for(tiny_model("qwen3"))
    target = adapter_for(tiny_model("qwen3", size="target", head_dim=8))
    pair, one = Pair.of(source, target, tiny_tokenizer()), sample()
    assert get_method("raw_source").applicable(pair) is None
    batch = Prepared(pair, interface_for(pair), one.examples)
    assert bool(torch.isfinite(last_logits(get_method("raw_source").mount(batch))).all())


def test_uniform_and_random_rankings_of_retrained_ablations() -> None:
    pair, one = tiny_pair(), sample()
    with torch.no_grad():
        uniform = Prepared(pair, interface_for(pair, allocator=None), one.examples).selection
        random_ranked = Prepared(pair, interface_for(pair, cartographer=None, ranking="random"), one.examples).selection
    assert bool((uniform.counts == uniform.counts[:, :1]).all()) and not torch.equal(uniform.positions, random_ranked.positions)
    with pytest.raises(ConfigError, match="needs a ranking"):
        interface_for(pair, cartographer=None)


def test_strict_controls_and_names_follow_the_registry() -> None:
    """The validity line judges every control but the raw source, whose states may carry something over."""
    assert {name for name, method in METHODS.items() if method.control} - {"raw_source"} == set(STRICT_CONTROLS)
    assert list(METHODS) == list(LABELS)


def test_unknown_method_suggests_a_name() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'bridge_only'"):
        get_method("bridge_olny")


def test_stopwatch_takes_inner_phases_out_of_outer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 6.0])
    monkeypatch.setattr("acct.methods.prepared.time.perf_counter", lambda: next(times))
    clock = Stopwatch()
    with clock.phase("outer"), clock.phase("inner"):
        pass
    assert clock.seconds == {"inner": 2.0, "outer": 4.0}
