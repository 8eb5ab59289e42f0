"""Mounting: equality with native runs and with a dense oracle, positions, gradients and storage."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import acct.mounted_context
from acct.cache import extend, mounted
from acct.errors import InputError
from acct.models.registry import adapter_for
from acct.selection import batch_index, full_selection, gather_native, row_index, rows, select, slots_of_rows
from acct.types import SparseKV
from tests import tolerances
from tests.mounting import assert_rows_close, gated, native_logits, run, target
from tests.reference import attention as reference
from tests.reference.attention import native_kv, native_states, random_selection, selected
from tests.tiny import FAMILIES, one_row, tiny_batch, tiny_model

# ---- values ----


@pytest.mark.parametrize("family", FAMILIES)
def test_native_kv_at_every_position_reproduces_the_native_logits(family: str) -> None:
    adapter, batch = target(family), tiny_batch()
    everything = full_selection(batch.context_lengths, adapter.geometry.layers, adapter.geometry.kv_heads)
    kv = native_kv(adapter, batch, everything)
    assert_rows_close(run(adapter, kv, batch.query_ids, batch.query_lengths), native_logits(adapter, batch))


@pytest.mark.parametrize("rope", ["linear", "dynamic", "llama3", "yarn"])
def test_native_logits_are_reproduced_with_every_rope_kind(rope: str) -> None:
    adapter, batch = target("llama", rope=rope), tiny_batch(context=(9, 31), query=(5, 4))
    selection = full_selection(batch.context_lengths, adapter.geometry.layers, adapter.geometry.kv_heads)
    keys, values = gather_native(selection, native_states(adapter, batch))
    totals = (batch.context_lengths + batch.query_lengths)[batch_index(selection)]
    kv = SparseKV(selection, adapter.rotate(keys, selection.positions, totals), values, rotated=True)
    fresh = target("llama", rope=rope)  # stock "dynamic" keeps the frequencies of the longest sequence it has seen
    assert_rows_close(run(adapter, kv, batch.query_ids, batch.query_lengths), native_logits(fresh, batch))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_per_unit_masks_equal_a_dense_reference(family: str, implementation: str) -> None:
    """Case 14: unequal counts in each layer and head; some units keep nothing."""
    adapter, batch = target(family), tiny_batch(seed=1)
    selection = random_selection(adapter, batch.context_lengths, tail=0)
    assert int(selection.counts.min()) == 0 and len(selection.counts.unique()) > 3
    logits = run(adapter, native_kv(adapter, batch, selection), batch.query_ids, batch.query_lengths)
    kept = selected(selection, batch.context_ids.shape[1]).unflatten(1, (selection.layers, selection.heads))
    for row in range(batch.batch):
        one = one_row(batch, row)
        n = one.context_ids.shape[1]
        expected = reference.masked_native_logits(adapter.model, one.context_ids[0], one.query_ids[0], kept[row, ..., :n], implementation)
        torch.testing.assert_close(logits[row, : len(expected)], expected, atol=tolerances.MOUNTED_LOGITS, rtol=0)


def test_nothing_kept_still_starts_at_position_n() -> None:
    """Case 12: a context of zero stored slots is a context, not an absent one."""
    adapter, batch = target(), tiny_batch(seed=2)
    empty = random_selection(adapter, batch.context_lengths, tail=0, empty=True)
    kv = native_kv(adapter, batch, empty)
    logits = run(adapter, kv, batch.query_ids, batch.query_lengths)
    closed = torch.zeros(empty.layers, empty.heads, 17, dtype=torch.bool)
    one = one_row(batch, 2)
    expected = reference.masked_native_logits(adapter.model, one.context_ids[0], one.query_ids[0], closed, "eager")
    torch.testing.assert_close(logits[2, :3], expected, atol=tolerances.MOUNTED_LOGITS, rtol=0)
    with mounted(adapter, kv) as cache:
        assert cache.context_lengths.tolist() == [11, 5, 17] and cache.mounted_bytes() == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_mounted_is_the_plain_causal_run(family: str) -> None:
    adapter, batch = target(family), tiny_batch()
    ids, lengths = batch.joined()
    expected = adapter.model(ids).logits
    logits = run(adapter, None, ids, lengths)
    assert_rows_close(logits, [row[:length] for row, length in zip(expected, lengths.tolist())], tolerances.LOGITS)


def test_an_empty_cache_object_is_honoured() -> None:
    """Case 12: a cache that holds no native token yet is used, not replaced."""
    adapter, batch = target(), tiny_batch()
    with mounted(adapter, None, 3) as cache:
        assert cache.native_width == 0
        extend(adapter, cache, batch.query_ids, batch.query_lengths)
        assert cache.native_lengths.tolist() == batch.query_lengths.tolist()
        assert all(layer.native == batch.query_ids.shape[1] for layer in cache.layers)


def test_slot_order_is_irrelevant() -> None:
    adapter, batch = target(), tiny_batch(seed=3)
    selection = random_selection(adapter, batch.context_lengths)
    kv = native_kv(adapter, batch, selection)
    noise = torch.rand(len(selection.positions), generator=torch.Generator().manual_seed(0))
    shuffled = (row_index(selection).double() + noise).argsort()  # within each row
    assert not torch.equal(shuffled, torch.arange(len(shuffled)))
    other = replace(kv, keys=kv.keys[shuffled], values=kv.values[shuffled])
    first, second = (run(adapter, one, batch.query_ids, batch.query_lengths) for one in (kv, other))
    torch.testing.assert_close(first, second, atol=tolerances.MOUNTED_LOGITS, rtol=0)


def test_one_row_alone_equals_the_batch() -> None:
    """Padding of slots, queries and contexts has no effect."""
    adapter, batch = target(), tiny_batch(seed=4)
    selection = random_selection(adapter, batch.context_lengths)
    kv = native_kv(adapter, batch, selection)
    logits = run(adapter, kv, batch.query_ids, batch.query_lengths)
    for row in range(3):
        slots = slots_of_rows(selection, [row])
        one = replace(kv, selection=rows(selection, [row]), keys=kv.keys[slots], values=kv.values[slots])
        alone = one_row(batch, row)
        assert_rows_close(logits[row : row + 1], [run(adapter, one, alone.query_ids, alone.query_lengths)[0]])


def test_extending_in_pieces_equals_one_pass() -> None:
    """Right padding inside the history is masked for ever; rows may append nothing."""
    adapter, batch = target(), tiny_batch(seed=5, query=(5, 3, 6))
    kv = native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))
    whole = run(adapter, kv, batch.query_ids, batch.query_lengths)
    pieces = [[2, 0, 1], [0, 1, 3], [3, 2, 1], [0, 0, 1]]
    done, got = [0, 0, 0], [[], [], []]
    with mounted(adapter, kv) as cache:
        for piece in pieces:
            width = max(piece)
            ids = torch.full((3, width), 7)
            for row, count in enumerate(piece):
                ids[row, :count] = batch.query_ids[row, done[row] : done[row] + count]
            logits = extend(adapter, cache, ids, torch.tensor(piece))
            assert bool(torch.isfinite(logits).all())
            for row, count in enumerate(piece):
                got[row].append(logits[row, :count])
                done[row] += count
        assert cache.native_lengths.tolist() == [5, 3, 6] and cache.native_width == 2 + 3 + 3 + 1
    assert_rows_close(whole, [torch.cat(parts) for parts in got])


def test_logits_at_asked_places_are_those_of_the_whole() -> None:
    adapter, batch = target(), tiny_batch()
    with mounted(adapter, None, 3) as cache:
        mark = cache.mark()
        whole = extend(adapter, cache, batch.query_ids, batch.query_lengths)
        cache.rewind(mark)
        at = torch.tensor([[0, 3], [5, 1], [2, 2]])
        some = extend(adapter, cache, batch.query_ids, batch.query_lengths, at=at)
    torch.testing.assert_close(some, whole[torch.arange(3)[:, None], at])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bf16_target_mounts_fp32_states(family: str) -> None:
    model = tiny_model(family, size="target")
    for parameter in model.parameters():  # not model.to(): rotary frequencies stay fp32
        parameter.data = parameter.data.bfloat16()
    adapter, batch = adapter_for(model), tiny_batch()
    selection = full_selection(batch.context_lengths, adapter.geometry.layers, adapter.geometry.kv_heads)
    kv = native_kv(adapter, batch, selection)
    logits = run(adapter, replace(kv, keys=kv.keys.float(), values=kv.values.float()), batch.query_ids, batch.query_lengths)
    assert logits.dtype == torch.bfloat16
    assert_rows_close(logits.float(), [row.float() for row in native_logits(adapter, batch)], tolerances.MOUNTED_LOGITS_BF16)


# ---- positions ----


def test_query_positions_start_at_n_not_at_the_number_of_stored_slots() -> None:
    """Case 13, checked inside the model: every row counts from its own N, also when generating goes on."""
    adapter, batch = target(), tiny_batch(seed=6)
    selection = random_selection(adapter, batch.context_lengths)
    assert int(selection.counts.max()) < 17
    seen: list[Tensor] = []
    handle = adapter.parts.rotary.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs.get("position_ids", args[-1])), with_kwargs=True
    )
    try:
        kv = native_kv(adapter, batch, selection)
        seen.clear()
        with mounted(adapter, kv) as cache:
            extend(adapter, cache, batch.query_ids, batch.query_lengths)
            extend(adapter, cache, torch.full((3, 1), 9), torch.tensor([1, 1, 1]))
    finally:
        handle.remove()
    assert [row[0] for row in seen[0].tolist()] == [11, 5, 17]
    assert seen[1].flatten().tolist() == [11 + 4, 5 + 6, 17 + 3]


# ---- gradients ----


def test_gradients_into_mounted_states_agree_with_finite_differences() -> None:
    adapter, batch = target(num_hidden_layers=2), tiny_batch(seed=7)
    kv = native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(3, 6, adapter.geometry.vocabulary, generator=generator) / 100
    weights *= (torch.arange(6) < batch.query_lengths[:, None])[..., None]

    def loss(keys: Tensor, values: Tensor) -> Tensor:
        logits = run(adapter, replace(kv, keys=keys, values=values), batch.query_ids, batch.query_lengths)
        return (logits.double() * weights).sum()

    leaves = [kv.keys.clone().requires_grad_(), kv.values.clone().requires_grad_()]
    gradients = torch.autograd.grad(loss(*leaves), leaves)
    for which in (0, 1):
        direction = torch.randn(kv.keys.shape, generator=generator)
        step, ends = 1e-2, []
        for sign in (1, -1):
            moved = [kv.keys, kv.values]
            moved[which] = moved[which] + sign * step * direction
            ends.append(float(loss(*moved)))
        numeric = (ends[0] - ends[1]) / (2 * step)
        assert float((gradients[which] * direction).sum()) == pytest.approx(numeric, rel=tolerances.FINITE_DIFFERENCE)


def test_repeated_rows_give_their_gradients_to_one_storage() -> None:
    adapter, batch = target(), tiny_batch(seed=8)
    kv = native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))
    leaf = kv.values.clone().requires_grad_()
    context = replace(kv, values=leaf)
    with mounted(adapter, context) as cache:
        twice = cache.repeat(2)
        logits = extend(adapter, twice, batch.query_ids.repeat_interleave(2, 0), batch.query_lengths.repeat_interleave(2))
    once = run(adapter, context, batch.query_ids, batch.query_lengths)
    (double,) = torch.autograd.grad(logits.sum(), leaf)
    (single,) = torch.autograd.grad(once.sum(), leaf)
    torch.testing.assert_close(double, 2 * single, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_gated_forward_equals_the_mount_of_its_hard_selection(family: str) -> None:
    adapter, batch = target(family), tiny_batch(seed=9)
    selection = random_selection(adapter, batch.context_lengths)
    context = gated(adapter, batch, selected(selection, 17))
    expected = run(adapter, native_kv(adapter, batch, selection), batch.query_ids, batch.query_lengths)
    got = run(adapter, context, batch.query_ids, batch.query_lengths)
    rows_of = [expected[row, :length] for row, length in enumerate(batch.query_lengths.tolist())]
    assert_rows_close(got, rows_of, tolerances.GATED_LOGITS)
    with torch.no_grad():
        assert_rows_close(run(adapter, context, batch.query_ids, batch.query_lengths), rows_of, tolerances.GATED_LOGITS)


def test_gate_gradient_is_the_soft_path_gradient_at_every_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same model with the slow float64 twin in every layer."""
    adapter, batch = target(), tiny_batch(seed=10)
    context = gated(adapter, batch, selected(random_selection(adapter, batch.context_lengths), 17))

    def gradient() -> Tensor:
        logits = run(adapter, context, batch.query_ids, batch.query_lengths)
        loss = sum(logits[row, :length].logsumexp(-1).sum() - logits[row, :length, 5].sum() for row, length in enumerate([4, 6, 3]))
        (found,) = torch.autograd.grad(loss, context.log_gates)
        return found

    got = gradient()

    def slow(query, keys, values, hard, log_gates, native_allowed, scaling):  # type: ignore[no-untyped-def]
        valid = native_allowed[:, -1].clone()
        chosen, soft = reference.gated_attention(query, keys, values, hard, log_gates, valid, scaling)
        return (soft + (chosen - soft).detach()).to(query.dtype)

    monkeypatch.setattr(acct.mounted_context, "gated_attention", slow)
    expected = gradient()
    assert float(expected.abs().max()) > 1e-3
    torch.testing.assert_close(got, expected, atol=tolerances.GATE_GRADIENT, rtol=1e-3)
    padding = torch.arange(17) >= batch.context_lengths[:, None]
    assert not bool(got.transpose(1, 2)[padding].any()) and bool(torch.isfinite(got).all())


# ---- storage ----


@pytest.mark.parametrize("dim", [32, 64])
def test_a_mounted_cache_holds_no_padding_bytes(dim: int) -> None:
    """Case 15: 2 P k d numbers, whatever the counts; the index apart and small."""
    adapter = target("llama", head_dim=dim, hidden_size=72)
    batch = tiny_batch(context=(200, 200), query=(3, 3))
    geometry = adapter.geometry
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(2, geometry.units, 200, generator=generator).argsort(-1)
    counts = torch.randint(0, 101, (2, geometry.units // 2 + 1), generator=generator)
    counts = torch.cat([counts, 100 - counts], dim=1)[:, : geometry.units]  # ragged
    selection = select(order, counts, batch.context_lengths, torch.zeros(2, dtype=torch.int64), geometry.layers, geometry.kv_heads)
    slots = int(counts.sum())
    keys, values = torch.randn(slots, dim), torch.randn(slots, dim)
    with mounted(adapter, SparseKV(selection, keys, values, rotated=True)) as cache:
        exact = 2 * slots * dim * keys.itemsize
        assert exact <= cache.mounted_bytes() <= 1.05 * exact
        assert cache.mounted_bytes() + cache.index_bytes() <= 1.1 * exact
        assert cache.layers[0].context.keys.data_ptr() == keys.data_ptr()  # a view, no copy
        repeated = cache.repeat(3)
        assert repeated.mounted_bytes() == cache.mounted_bytes()


def test_layers_with_equal_counts_share_one_index() -> None:
    adapter, batch = target(), tiny_batch()
    everything = full_selection(batch.context_lengths, adapter.geometry.layers, adapter.geometry.kv_heads)
    with mounted(adapter, native_kv(adapter, batch, everything)) as cache:
        indices = {id(layer.context.index()) for layer in cache.layers}
        assert len(indices) == 1


# ---- marks and rows ----


def test_scoring_leaves_the_cache_as_it_was_found() -> None:
    """Case 1: after mark and rewind the next tokens give what they give on a fresh mount."""
    adapter, batch = target(), tiny_batch(seed=11)
    kv = native_kv(adapter, batch, random_selection(adapter, batch.context_lengths))
    fresh = run(adapter, kv, batch.query_ids, batch.query_lengths)
    with mounted(adapter, kv) as cache:
        mark = cache.mark()
        extend(adapter, cache, torch.full((3, 5), 8), torch.tensor([5, 2, 0]))
        cache.rewind(mark)
        assert cache.native_width == 0 and cache.native_lengths.tolist() == [0, 0, 0]
        assert torch.equal(extend(adapter, cache, batch.query_ids, batch.query_lengths), fresh)
        inner = cache.mark()
        extend(adapter, cache, torch.full((3, 2), 8), torch.tensor([1, 2, 2]))
        cache.rewind(inner)
        assert cache.native_lengths.tolist() == batch.query_lengths.tolist()


def test_repeated_rows_continue_like_their_original() -> None:
    adapter, batch = target(), tiny_batch(seed=12)
    selection = random_selection(adapter, batch.context_lengths)
    nxt = torch.tensor([[7, 8], [9, 10], [11, 0]])
    for context in (native_kv(adapter, batch, selection), gated(adapter, batch, selected(selection, 17)), None):
        with mounted(adapter, context, 3) as cache:
            extend(adapter, cache, batch.query_ids, batch.query_lengths)
            copies = cache.repeat([2, 0, 3]).take([4, 0, 1, 2, 3])
            owners = [2, 0, 0, 2, 2]
            got = extend(adapter, copies, nxt[owners], torch.tensor([2, 2, 1])[owners])
            assert cache.native_lengths.tolist() == batch.query_lengths.tolist()
            expected = extend(adapter, cache, nxt, torch.tensor([2, 2, 1]))
        assert_rows_close(got, [expected[owner, : [2, 2, 1][owner]] for owner in owners])


def test_a_mark_of_another_cache_is_refused() -> None:
    adapter = target()
    with mounted(adapter, None, 2) as cache, mounted(adapter, None, 2) as other:
        with pytest.raises(InputError, match="another cache"):
            cache.rewind(other.mark())
        with pytest.raises(InputError, match="repeat got 3"):
            cache.repeat([1, 1, 1])
