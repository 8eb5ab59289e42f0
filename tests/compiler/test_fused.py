"""The fast conversion path against the plain one: the same selection, the same numbers."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from acct.cartographer import _stable_order, _vector_order, rank_prefix
from acct.compiler.bridge import Bridge
from acct.compiler.compiler import Compiler, rotate_kv
from acct.compiler.grouped import UnitGroups
from acct.compiler.residual import Residual
from acct.errors import ConfigError
from acct.models.registry import adapter_for
from acct.models.rotary import Rotary
from acct.selection import batch_index, flat_rows, gather_source, slots_by_unit, unit_index
from tests.compiler.states import PAIR, draw
from tests.tiny import tiny_model
from tests.tolerances import FUSED_FLOAT64

SHAPE = {"width": 64, "feed_forward_width": 96, "depth": 2, "latents": 5}


def compiler(seed: int = 0, residual: bool = True, layers: int = 1, heads: str = "modulo") -> Compiler:
    from acct.compiler.residual import ResidualShape

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Compiler(
            Bridge(PAIR, PAIR.source_reads(layers, heads)), Residual(ResidualShape(20, PAIR.units, 10, **SHAPE)) if residual else None
        ).requires_grad_(False)
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return made


@pytest.mark.parametrize("contexts", [(11, 2, 17), (40,), (1,), (3, 1)])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("layers", "heads"), [(1, "modulo"), (2, "all")])
def test_one_pass_over_blocks_equals_the_plain_path(contexts: tuple[int, ...], residual: bool, layers: int, heads: str) -> None:
    batch = draw(5, contexts, [2] * len(contexts), tail=2, empty=(1, 4), extra=3)
    wide = draw(5, contexts, [2] * len(contexts), tail=2, empty=(1, 4), extra=3, dtype=torch.float64)
    made = compiler(residual=residual, layers=layers, heads=heads)
    with torch.no_grad():
        exact = compiler(residual=residual, layers=layers, heads=heads).double()
        fast, plain = exact(wide.states, wide.selection), exact(wide.states, wide.selection, plain=True)
        torch.testing.assert_close(fast.keys, plain.keys, rtol=0, atol=FUSED_FLOAT64)
        torch.testing.assert_close(fast.values, plain.values, rtol=0, atol=FUSED_FLOAT64)
        fast, plain = made(batch.states, batch.selection), made(batch.states, batch.selection, plain=True)
        low = made(batch.states, batch.selection, dtype=torch.bfloat16)
    assert torch.equal(low.keys, fast.keys.bfloat16()) and torch.equal(low.values, fast.values.bfloat16())
    nbytes = len(batch.selection.positions) * 10 * 4
    assert (fast.keys.untyped_storage().nbytes(), fast.values.untyped_storage().nbytes()) == (nbytes, nbytes), "padding is stored nowhere"
    with torch.enable_grad():
        assert torch.equal(made(batch.states, batch.selection).keys, plain.keys), "with gradients the plain path runs"


def test_kernels_are_not_for_a_bridge_that_reads_several_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = compiler(layers=2), compiler()
    monkeypatch.setattr("acct.compiler.compiler.choose", lambda *_: True)
    assert narrow.takes_kernels and not wide.takes_kernels
    wide.kernels = "triton"
    with pytest.raises(ConfigError, match=r"one source vector for a slot; compiler\.bridge_layers and bridge_heads ask for 2"):
        wide.takes_kernels  # noqa: B018


def test_the_first_number_that_is_not_finite_is_still_found() -> None:
    batch, made = draw(1), compiler()
    broken = batch.states.values.clone()
    broken[0, 0, 0] = float("nan")
    with torch.no_grad(), pytest.raises(Exception, match="values already hold NaN"):
        made(dataclasses.replace(batch.states, values=broken), batch.selection)


def test_source_vectors_are_read_alike_from_contiguous_and_from_cut_states() -> None:
    batch = draw(2, (11, 2, 17), extra=0)
    selection, states = batch.selection, batch.states
    unit = unit_index(selection)
    layer, head = (torch.tensor(index)[unit] for index in (PAIR.source_layers(), PAIR.source_heads()))
    where = (batch_index(selection), layer, head, selection.positions)
    wide = torch.cat([states.keys_pre, torch.full_like(states.keys_pre, torch.nan)], dim=3)
    cut = [wide[:, :, :, : states.keys_pre.shape[3]], states.keys_pre.transpose(3, 4).contiguous().transpose(3, 4)]
    for keys in (states.keys_pre, *cut):
        found = gather_source(selection, dataclasses.replace(states, keys_pre=keys, values=keys), PAIR)
        assert torch.equal(found[0], states.keys_pre[where]) and torch.equal(found[1], found[0])
    assert flat_rows(cut[0]).data_ptr() == wide.data_ptr(), "a cut along the context is read in place"


def test_slots_by_unit_is_the_stable_sort_by_unit() -> None:
    for contexts in ((11, 2, 17), (30,)):
        selection = draw(4, contexts, [1] * len(contexts), empty=(0, 7)).selection
        assert torch.equal(slots_by_unit(selection), unit_index(selection).argsort(stable=True))
        small, large = (UnitGroups.of(selection, largest=most) for most in (1, 10**6))
        assert len(small.blocks) > len(large.blocks)


def test_the_vector_sort_is_the_stable_sort() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 257, generator=generator)
    tied = (scores * 2).round() / 2  # many ties, zeros of both signs
    extreme = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 1e-45, -1e-45, 3.4e38, -3.4e38, 0.0, -0.0]).repeat(1, 1, 3)
    for values in (scores, tied, extreme, scores[..., :1], scores.transpose(1, 2)):
        assert torch.equal(_vector_order(values), _stable_order(values))
    order = rank_prefix(tied, torch.tensor([200, 3]))
    assert order.dtype == torch.int64 and order[1, :, 3:].tolist() == [list(range(3, 257))] * 3


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_slots_turn_bit_for_bit_as_whole_sequences(family: str, dtype: torch.dtype) -> None:
    adapter = adapter_for(tiny_model(family))
    width = adapter.geometry.head_dim
    generator = torch.Generator().manual_seed(3)
    x, positions = torch.randn(9000, width, generator=generator).to(dtype), torch.randint(0, 300, (9000,), generator=generator)
    assert torch.equal(adapter.rotate(x, positions), adapter.rotate(x[None], positions[None])[0])
    assert adapter.rotate(x[:0], positions[:0]).shape == (0, width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("contexts", [(11, 2, 17), (40,)])
def test_keys_rotated_as_they_are_written_are_those_rotated_afterwards(
    contexts: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, made = draw(6, contexts, [2] * len(contexts), tail=2, empty=(1, 4), extra=3), compiler()
    rotary = _rotary()
    with torch.no_grad():
        before = made(batch.states, batch.selection, dtype=dtype)
        after = rotate_kv(SimpleNamespace(rotate=rotary.rotate), before)  # type: ignore[arg-type]
        monkeypatch.setattr(Rotary, "rotate", lambda *_: pytest.fail("a second pass over the keys"))
        fused = made(batch.states, batch.selection, dtype=dtype, rotary=rotary)
    assert fused.rotated and not before.rotated and fused.keys.dtype == dtype
    assert torch.equal(fused.keys, after.keys) and torch.equal(fused.values, before.values)
    assert not torch.equal(fused.keys, before.keys)


def test_frequencies_that_differ_by_example_are_applied_afterwards() -> None:
    batch, made = draw(7), compiler()
    dynamic = _rotary({"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}, longest=8)
    with torch.no_grad():
        expected = rotate_kv(SimpleNamespace(rotate=dynamic.rotate), made(batch.states, batch.selection))  # type: ignore[arg-type]
        found = made(batch.states, batch.selection, rotary=dynamic)
    assert found.rotated and torch.equal(found.keys, expected.keys)


def _rotary(scaling: dict[str, object] | None = None, longest: int = 64) -> Rotary:
    """Of a Llama whose heads are as wide as those of the target of `PAIR`."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    settings = {} if scaling is None else {"rope_parameters": scaling}
    width = PAIR.target.head_dim
    config = LlamaConfig(hidden_size=2 * width, num_attention_heads=2, head_dim=width, max_position_embeddings=longest, **settings)
    return Rotary(LlamaRotaryEmbedding(config), config, width)
