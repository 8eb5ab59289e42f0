"""The interface check accepts every family and refuses a broken rotation, broken states and another stop behaviour."""

from __future__ import annotations

import pytest
import torch

import acct.interface_check as module
from acct.errors import InterfaceError
from acct.interface_check import interface_check, mount_everything
from acct.models.adapter import ModelAdapter
from acct.models.registry import adapter_for
from tests import tolerances
from tests.tiny import FAMILIES, ROPE_KINDS, tiny_batch, tiny_model


def target(family: str = "qwen3", rope: str | None = None) -> ModelAdapter:
    return adapter_for(tiny_model(family, size="target", rope=rope))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reproduces_its_native_run(family: str) -> None:
    report = interface_check(target(family), tiny_batch())
    assert report.native_tokens == report.mounted_tokens and [len(row) for row in report.native_tokens] == [4, 4, 4]
    assert report.logit_difference < tolerances.MOUNTED_LOGITS and report.nll_difference < tolerances.MOUNTED_LOGITS
    assert report.smallest_margin > report.logit_difference


@pytest.mark.parametrize("rope", [kind for kind in ROPE_KINDS if kind != "dynamic"])
def test_every_fixed_rope_kind_reproduces_its_native_run(rope: str) -> None:
    report = interface_check(target("llama", rope), tiny_batch(context=(40, 7), query=(3, 5)))
    assert report.logit_difference < tolerances.MOUNTED_LOGITS


def test_tokens_are_compared_through_the_stop_token() -> None:
    """Case 30: EOS behaviour equals the native run's."""
    adapter, batch = target(), tiny_batch(seed=1)
    free = interface_check(adapter, batch).native_tokens
    stopped = interface_check(adapter, batch, stop_ids=[free[0][1]])
    assert stopped.native_tokens[0] == stopped.mounted_tokens[0] == free[0][: free[0].index(free[0][1]) + 1]


@pytest.mark.parametrize("tied", [True, False])
def test_tokens_may_part_at_a_tie_and_nowhere_else(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, batch = target(), tiny_batch(seed=1)
    native = interface_check(adapter, batch).native_tokens
    used = {*batch.context_ids.flatten().tolist(), *batch.query_ids.flatten().tolist()}
    other = next(token for token in reversed(range(adapter.geometry.vocabulary)) if token not in used)
    assert other > native[1][2], "of two that are equal the first is taken"
    if tied:
        with torch.no_grad():
            adapter.parts.head.weight[other] = adapter.parts.head.weight[native[1][2]]
    right, calls = module.greedy, []

    def parted(*arguments):  # type: ignore[no-untyped-def]
        found = right(*arguments)
        calls.append(found)
        if len(calls) == 2:
            found.tokens[1][2] = other
        return found

    monkeypatch.setattr(module, "greedy", parted)
    if tied:
        report = interface_check(adapter, batch)
        assert report.ties == 1 and report.mounted_tokens[1][2] == other and report.native_tokens == native
    else:
        with pytest.raises(InterfaceError, match=r"example 1: mounted .*native margin where they part"):
            interface_check(adapter, batch)


def test_given_candidates_are_scored() -> None:
    report = interface_check(target(), tiny_batch(), candidates=[[[5], [6, 7]], [[8]], [[9, 10, 11]]])
    assert report.nll_difference < tolerances.MOUNTED_LOGITS


def test_a_rotation_off_by_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 4: the comparison is with the model's own run, not with an inverse of the same rotation."""
    adapter = target()
    right = adapter.rotate
    monkeypatch.setattr(adapter, "rotate", lambda x, positions, totals=None: right(x, positions + 1, totals))
    with pytest.raises(InterfaceError, match="Mounting does not reproduce the native run"):
        interface_check(adapter, tiny_batch())


def test_states_that_keep_the_tokens_but_move_the_likelihood_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, batch = target(), tiny_batch(seed=2)

    def spoiled(adapter: ModelAdapter, batch):  # type: ignore[no-untyped-def]
        kv = mount_everything(adapter, batch)
        kv.values.mul_(1.02)
        return kv

    monkeypatch.setattr(module, "mount_everything", spoiled)
    report = interface_check(adapter, batch, max_new_tokens=1, nll_tolerance=10.0)
    assert report.nll_difference > 1e-3
    with pytest.raises(InterfaceError, match="apart by more than"):
        interface_check(adapter, batch, max_new_tokens=1, nll_tolerance=report.nll_difference / 2)


def test_nan_in_mounted_states_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(adapter: ModelAdapter, batch):  # type: ignore[no-untyped-def]
        kv = mount_everything(adapter, batch)
        kv.values[0] = torch.nan
        return kv

    monkeypatch.setattr(module, "mount_everything", spoiled)
    with pytest.raises(InterfaceError):
        interface_check(target(), tiny_batch(), max_new_tokens=1)
