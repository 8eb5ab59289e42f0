"""The kernels against the plain path: on CUDA where there is one, else on the CPU through Triton's interpreter (`make test-kernels`).

Tolerances are relative to the largest number of the plain result. float32: the same sums in another order, seen 1e-6. bf16: the plain path
rounds between its steps and the kernels do not, so they are compared with float32 arithmetic on the same bf16 numbers, where their only
error is the rounding of what they write: 2^-8 of a number at most on CUDA, 2^-7 in the interpreter, which cuts bits off.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from acct.allocator.budget import BudgetRule
from acct.cartographer import Cartographer, CartographerShape
from acct.compiler.bridge import Bridge
from acct.compiler.compiler import Compiler, rotate_kv
from acct.geometry import ModelGeometry, PairGeometry
from acct.kernels import available, interpreted
from acct.latency.stages import Conversion, Receiver
from acct.models.registry import adapter_for
from acct.pipeline import Interface, transfer
from acct.selection import select
from acct.source import read_source
from acct.types import SourceStates
from tests.compiler.states import Batch, draw, residual
from tests.tiny import tiny_batch, tiny_model, tiny_pair

if not available():
    pytest.skip("Triton is not installed; `make test-kernels` installs it into an environment of its own", allow_module_level=True)
if not interpreted() and not torch.cuda.is_available():
    pytest.skip("no CUDA device; TRITON_INTERPRET=1 runs the kernels on the CPU (`make test-kernels`)", allow_module_level=True)

from acct.kernels import compilation, scoring

DEVICE = torch.device("cpu" if interpreted() else "cuda")
FLOAT32, SHORT = 5e-6, {torch.bfloat16: 2.0**-7 if interpreted() else 2.0**-8, torch.float16: 2.0**-10}
BF16 = SHORT[torch.bfloat16]
GRADIENT = 1e-5  # of the largest number of the gradient: sums of other blocks, seen 1e-6


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal to `tolerance` of the largest number expected."""
    assert found.shape == expected.shape and found.numel() and bool(expected.any())
    error = float((found.double() - expected.double()).abs().max() / expected.double().abs().max())
    assert error <= tolerance, f"relative error {error:.2g}"


# ---- scores ----


def pair_of(heads: int = 5, source_dim: int = 6, target_dim: int = 10) -> PairGeometry:
    return PairGeometry(
        ModelGeometry("llama", layers=2, kv_heads=2, query_heads=4, head_dim=source_dim, hidden=20, vocabulary=11),
        ModelGeometry("llama", layers=3, kv_heads=heads, query_heads=2 * heads, head_dim=target_dim, hidden=28, vocabulary=11),
    )


def cartographer(width: int, query_slots: int = 4, heads: int = 5, dropout: float = 0.0) -> Cartographer:
    with torch.random.fork_rng():
        torch.manual_seed(width)
        shape = CartographerShape(12, width, code_width=5, query_slots=query_slots, dropout=dropout)
        module = Cartographer(pair_of(heads), shape).to(DEVICE)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return module.eval()


def asked(lengths: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    context, query = (torch.randn(len(lengths), n, 20, generator=generator).to(DEVICE, dtype) for n in (max(lengths) + 1, 4))
    return context, torch.tensor(lengths, device=DEVICE), query, torch.full((len(lengths),), 3, device=DEVICE)


# widths below, at and above a power of two; positions and units that fill no tile; more units than one program walks over
SHAPES = [(7, 4, 5, (9, 6)), (16, 4, 6, (1,)), (40, 3, 1, (70, 2, 33)), (128, 4, 2, (40,)), (160, 1, 7, (31,)), (1, 2, 2, (5,))]


@pytest.mark.parametrize("width, query_slots, heads, lengths", SHAPES)
def test_scores_and_gradients_equal_the_plain_path(width: int, query_slots: int, heads: int, lengths: tuple[int, ...], monkeypatch) -> None:
    module, inputs = cartographer(width, query_slots, heads), asked(lengths)
    monkeypatch.setattr(scoring, "BACKWARD_NUMBERS", 2 * max(lengths) * width + 1)  # some blocks, also one that is not full
    upstream = torch.randn(len(lengths), 3 * heads, max(lengths) + 1, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    found: dict[str, tuple[Tensor, ...]] = {}
    for module.kernels in ("plain", "triton"):
        hidden = inputs[0].clone().requires_grad_()
        scores = module(hidden, *inputs[1:])
        found[module.kernels] = scores.detach(), *torch.autograd.grad((scores * upstream).sum(), [hidden, *module.parameters()])
        with torch.no_grad():
            close(module(*inputs), scores.detach(), FLOAT32)
    close(found["triton"][0], found["plain"][0], FLOAT32)
    names = ["hidden", *(name for name, _ in module.named_parameters())]
    for name, ours, plain in zip(names, found["triton"][1:], found["plain"][1:]):
        assert float((ours - plain).abs().max()) <= GRADIENT * max(float(plain.abs().max()), 1.0), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_in_short_types_are_rounded_once(dtype: torch.dtype) -> None:
    module = cartographer(24).to(dtype)
    generator = torch.Generator().manual_seed(3)
    token, base = (torch.randn(2, 19, 24, generator=generator).to(DEVICE, dtype) for _ in range(2))
    slots = torch.randn(2, 15, 4, 24, generator=generator).to(DEVICE, dtype) / 5
    found = scoring.run_kernel(token, base, slots, module.match.weight.detach(), module.readout.weight.detach())
    with torch.no_grad():
        exact = module.float()._score(token.float(), base.float(), slots.float(), None)
    assert found.dtype == dtype
    close(found, exact, SHORT[dtype])


def test_only_gradients_that_are_asked_for_and_a_subset_of_units() -> None:
    module, inputs = cartographer(12), asked((8, 5))
    units = torch.tensor([[3, 0, 14], [1, 1, 7]], device=DEVICE)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in ("match.weight", "film.0.weight"))
    wanted = [parameter for parameter in module.parameters() if parameter.requires_grad]
    found = []
    for module.kernels in ("plain", "triton"):
        found.append(torch.autograd.grad(module(*inputs, units).square().sum(), wanted))
    for ours, plain in zip(*found):
        close(ours, plain, GRADIENT)


def test_dropout_takes_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module, inputs = cartographer(12, dropout=0.5), asked((8,))
    module.kernels, calls = "triton", []
    original = scoring.run_kernel
    monkeypatch.setattr(scoring, "run_kernel", lambda *arguments: calls.append(1) or original(*arguments))
    module.train()(*inputs)
    assert calls == []
    module.eval()(*inputs)
    assert calls == [1]


# ---- slots ----


def compiler(pair: PairGeometry, dtype: torch.dtype = torch.float32, with_residual: bool = True, width: int = 12) -> Compiler:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = Compiler(Bridge(pair), residual(1, pair, randomise=True, width=width) if with_residual else None)
        for parameter in made.bridge.parameters():
            parameter.data.copy_(torch.randn(parameter.shape) * 0.3)
    return made.to(DEVICE, dtype).eval().requires_grad_(False)


def on_device(value: Any) -> Any:
    moved = {field: part.to(DEVICE) for field, part in vars(value).items() if isinstance(part, Tensor)}
    return dataclasses.replace(value, **moved)


def drawn(pair: PairGeometry, contexts: tuple[int, ...], **options: Any) -> tuple[SourceStates, Any]:
    batch: Batch = draw(5, contexts, [2] * len(contexts), pair=pair, **options)
    return on_device(batch.states), on_device(batch.selection)


def both(made: Compiler, states: SourceStates, selection: Any, target: Any = None, dtype: torch.dtype | None = None) -> list[Any]:
    """What the kernel and the plain path compile, keys rotated where there is a target."""
    results = []
    with torch.no_grad():
        for made.kernels in ("triton", "plain"):
            results.append(made(states, selection, dtype=dtype, rotary=None if target is None else target.rotary))
    return results


# head widths below a tile's, one more than 64, 128; slots that fill several tiles of a unit; one example and several
SLOT_SHAPES = [
    (6, 10, (11, 2, 17), 12), (64, 80, (9,), 36), (80, 64, (5, 3), 64), (128, 128, (8,), 20), (18, 2, (1,), 12), (34, 22, (70, 1, 40), 12),
]  # fmt: skip


@pytest.mark.parametrize("source_dim, target_dim, contexts, width", SLOT_SHAPES)
@pytest.mark.parametrize("with_residual", [True, False])
def test_keys_and_values_equal_the_plain_path(source_dim, target_dim, contexts, width, with_residual) -> None:
    pair = pair_of(3, source_dim, target_dim)
    states, selection = drawn(pair, contexts, tail=1 if contexts == (1,) else 2, extra=3)
    made = compiler(pair, with_residual=with_residual, width=width)
    target = adapter_for(tiny_model("llama", head_dim=target_dim).to(DEVICE))
    for rotation in (None, target) if with_residual else (target,):
        ours, plain = both(made, states, selection, rotation)
        assert ours.rotated == plain.rotated == (rotation is not None)
        close(ours.keys, plain.keys, FLOAT32)
        close(ours.values, plain.values, FLOAT32)


def test_units_without_a_slot_with_one_and_with_exactly_a_tile() -> None:
    pair = pair_of(3)
    states, _ = drawn(pair, (80, 5))
    counts = torch.zeros(2, pair.units, dtype=torch.int64)
    counts[0, [1, 2, 4, 7]] = torch.tensor([1, 64, 65, 33])
    counts[1, [2, 8]] = torch.tensor([5, 1])
    order, lengths = torch.arange(80).expand(2, pair.units, -1), torch.tensor([80, 5])
    selection = on_device(select(order, counts, lengths, torch.zeros(2, dtype=torch.int64), 3, 3))
    tiles = compilation.Tiles.of(selection, 64)
    real = tiles.unit < pair.units
    assert tiles.unit[real].tolist() == [1, 2, 2, 4, 4, 7, 8] and bool((tiles.unit[~real] == pair.units).all())
    taken = [tiles.order[a : min(b, a + 64)] for a, b in zip(tiles.first[real].tolist(), tiles.stop[real].tolist())]
    assert torch.cat(taken).sort().values.tolist() == list(range(int(counts.sum()))), "every slot is in one tile"
    ours, plain = both(compiler(pair), states, selection)
    close(ours.keys, plain.keys, FLOAT32)
    close(ours.values, plain.values, FLOAT32)
    nothing = on_device(select(order, counts * 0, lengths, torch.zeros(2, dtype=torch.int64), 3, 3))
    ours, plain = both(compiler(pair), states, nothing)
    assert ours.keys.shape == plain.keys.shape == (0, 10)


@pytest.mark.parametrize(
    "states_dtype, module_dtype", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16,) * 2]
)
def test_short_types_are_rounded_once(states_dtype: torch.dtype, module_dtype: torch.dtype) -> None:
    pair = pair_of(3, 34, 22)
    states, selection = drawn(pair, (70, 1, 40), dtype=states_dtype)
    made, target = compiler(pair, module_dtype, with_residual=False), adapter_for(tiny_model("llama", head_dim=22).to(DEVICE))
    ours, _ = both(made, states, selection, target, torch.bfloat16)
    assert ours.keys.dtype == ours.values.dtype == torch.bfloat16
    as_module = dataclasses.replace(
        states, keys_pre=states.keys_pre.to(module_dtype).float(), values=states.values.to(module_dtype).float()
    )
    wide = compiler(pair, module_dtype, with_residual=False).float()
    with torch.no_grad():
        exact = wide(as_module, selection)
        cos, sin, turn = compilation.rotation_table(target.rotary, selection, torch.bfloat16, states.context_ids.shape[1])
        half = torch.cat([-exact.keys[:, 11:], exact.keys[:, :11]], dim=-1)
        keys = exact.keys * cos[turn].float() + half * sin[turn].float()
    close(ours.keys, keys, BF16)
    close(ours.values, exact.values, BF16)
    if module_dtype == torch.bfloat16:  # z and conditions too are bf16 then
        ours, plain = both(compiler(pair, module_dtype), states, selection, target, torch.bfloat16)
        close(ours.keys, plain.keys, 4 * BF16)
        close(ours.values, plain.values, 4 * BF16)


@pytest.mark.parametrize("rope", ["yarn", "llama3", "dynamic"])
def test_rotation_is_the_targets_own_with_its_scaling_and_lengths(rope: str) -> None:
    pair = pair_of(3)
    states, selection = drawn(pair, (70, 9, 33))
    target = adapter_for(tiny_model("llama", rope=rope, head_dim=10).to(DEVICE))
    made = compiler(pair)
    ours, plain = both(made, states, selection, target)
    close(ours.keys, plain.keys, FLOAT32)
    apart = rotate_kv(target, both(made, states, selection)[0])
    close(ours.keys, apart.keys, FLOAT32)


def test_states_that_are_cut_along_the_context_are_read_in_place() -> None:
    pair = pair_of(3)
    states, selection = drawn(pair, (40, 9))
    wide = {name: torch.cat([getattr(states, name), getattr(states, name) * torch.nan], dim=3) for name in ("keys_pre", "values")}
    cut = dataclasses.replace(states, **{name: part[:, :, :, :40] for name, part in wide.items()})
    made = compiler(pair)
    assert torch.equal(both(made, cut, selection)[0].keys, both(made, states, selection)[0].keys)


@pytest.mark.parametrize("name", ["keys_pre", "values", "context_hidden"])
def test_what_is_not_finite_is_found(name: str) -> None:
    pair = pair_of(3)
    states, selection = drawn(pair, (70,))
    made, broken = compiler(pair), getattr(states, name).clone()
    broken[..., int(selection.positions[-1]), :] = float("inf")
    made.kernels = "triton"
    with torch.no_grad(), pytest.raises(Exception, match=f"source's {name} already hold NaN"):
        made(dataclasses.replace(states, **{name: broken}), selection)


def test_with_gradients_and_as_the_oracle_the_plain_path_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of(3)
    states, selection = drawn(pair, (7,))
    made = compiler(pair)
    made.kernels = "triton"
    monkeypatch.setattr(compilation, "compile_slots", lambda *_: pytest.fail("the kernel ran"))
    made(states, selection)
    with torch.no_grad():
        made(states, selection, plain=True)


# ---- both ----


@pytest.mark.skipif(not interpreted(), reason="the tiny pair lies on the CPU")
def test_a_whole_transfer_and_its_timed_stages_equal_the_plain_ones() -> None:
    pair = tiny_pair("qwen3")
    made, target = compiler(pair.geometry), pair.target
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ranking = Cartographer(pair.geometry, CartographerShape(12, 10)).eval()
    interface = Interface(made, BudgetRule(0.5, 2), ranking)
    states, found = read_source(pair.source, tiny_batch()), []
    for made.kernels in ("plain", "triton"):
        ranking.kernels = made.kernels
        found.append(transfer(pair, interface, states))
    plain, ours = found
    assert torch.equal(plain.selection.positions, ours.selection.positions) and ours.rotated
    close(ours.keys, plain.keys, FLOAT32)
    close(ours.values, plain.values, FLOAT32)
    stages = Conversion(pair.geometry, interface, Receiver(target.geometry, target.rotary, target.device, target.dtype))
    with torch.no_grad():
        converted = stages.packing(stages.convert(states))
        assert converted.rotated and torch.equal(stages.rotation(converted)[0].keys, ours.keys)


def test_the_kernels_compile_for_a_gpu_without_spilling(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.ahead_of_time", "90"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split(", ")[-3] for line in done.stdout.splitlines()] == ["0 bytes of stack"] * 5
