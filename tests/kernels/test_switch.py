"""runtime.kernels: what each value chooses on a machine without CUDA, and what its errors say. No Triton is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import acct.kernels
from acct.compiler.bridge import Bridge
from acct.compiler.compiler import Compiler, rotate_kv
from acct.config.root import compose
from acct.config.runtime import RuntimeConfig
from acct.errors import ConfigError
from acct.kernels import choose
from acct.models.registry import adapter_for
from acct.training.modules import make_interface, new_cartographer
from tests.compiler.states import PAIR, draw, residual
from tests.tiny import tiny_model

WEIGHT = torch.zeros(2)


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_auto_and_plain_are_plain_on_the_cpu_wherever_triton_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed in (True, False):
        monkeypatch.setattr(acct.kernels, "available", lambda installed=installed: installed)
        assert not choose("auto", WEIGHT) and not choose("plain", WEIGHT)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not choose("auto", WEIGHT), "the interpreter is chosen by name only"


def test_auto_takes_the_kernels_on_cuda_in_their_types_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnCuda:
        is_cuda, device, dtype = True, torch.device("cuda:0"), torch.bfloat16

    class Double(OnCuda):
        dtype = torch.float64

    monkeypatch.setattr(acct.kernels, "available", lambda: True)
    assert choose("auto", OnCuda()) and choose("triton", OnCuda()) and not choose("plain", OnCuda())  # type: ignore[arg-type]
    assert not choose("auto", Double())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"float32, bfloat16, float16, got torch\.float64"):
        choose("triton", Double())  # type: ignore[arg-type]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not choose("auto", OnCuda())  # type: ignore[arg-type]
    monkeypatch.setattr(acct.kernels, "available", lambda: False)
    assert not choose("auto", OnCuda())  # type: ignore[arg-type]


def test_kernels_by_name_stop_without_triton_and_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acct.kernels, "available", lambda: False)
    with pytest.raises(ConfigError, match=r"needs the package triton.*acct\[kernels\].*auto or plain"):
        choose("triton", WEIGHT)
    config = compose(["runtime.kernels=triton"])
    for build in (lambda: new_cartographer(config, PAIR), lambda: make_interface(config, PAIR, new_cartographer(compose([]), PAIR), None)):
        with pytest.raises(ConfigError, match="needs the package triton"):
            build()
    monkeypatch.setattr(acct.kernels, "available", lambda: True)
    with pytest.raises(ConfigError, match=r"CUDA device, it is on cpu.*interface_device=cuda.*TRITON_INTERPRET=1"):
        choose("triton", WEIGHT)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose("triton", WEIGHT)
    with pytest.raises(ConfigError, match=r"got torch\.float64"):
        choose("triton", WEIGHT.double())


def test_a_misspelt_switch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"runtime\.kernels must be one of auto, plain, triton; got 'cuda'"):
        RuntimeConfig(kernels="cuda")
    with pytest.raises(ConfigError, match="got 'Triton'"):
        choose("Triton", WEIGHT)


def test_the_setting_reaches_both_modules_and_auto_changes_no_bit_on_the_cpu() -> None:
    batch, context = draw(5, extra=2), draw(5, extra=2).states
    compiler = Compiler(Bridge(PAIR), residual(3, randomise=True)).eval()
    outputs = {}
    for kernels in ("plain", "auto"):
        config = compose([f"runtime.kernels={kernels}"])
        cartographer = new_cartographer(config, PAIR).eval()
        interface = make_interface(config, PAIR, cartographer, None, compiler)
        assert (cartographer.kernels, interface.compiler.kernels) == (kernels, kernels)
        lengths = context.context_lengths
        with torch.no_grad():
            kv = interface.compiler(batch.states, batch.selection)
            outputs[kernels] = (kv.keys, kv.values, cartographer(context.context_hidden, lengths, context.context_hidden, lengths))
    assert all(torch.equal(a, b) for a, b in zip(outputs["plain"], outputs["auto"]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiler_that_is_given_a_rotary_rotates_as_rotate_kv(dtype: torch.dtype) -> None:
    batch, compiler = draw(4), Compiler(Bridge(PAIR), residual(2, randomise=True))
    target = adapter_for(tiny_model("llama", head_dim=10))
    torch.nn.init.normal_(compiler.bridge.key_map)
    with torch.no_grad():
        apart = rotate_kv(target, compiler(batch.states, batch.selection, dtype=dtype))
        together = compiler(batch.states, batch.selection, dtype=dtype, rotary=target.rotary)
    assert together.rotated and torch.equal(together.keys, apart.keys) and torch.equal(together.values, apart.values)
    assert not torch.equal(apart.keys, compiler(batch.states, batch.selection, dtype=dtype).keys)


def test_importing_the_package_imports_no_triton() -> None:
    code = "import sys, acct.kernels, acct.cartographer, acct.compiler.compiler as c; sys.exit('acct.kernels.scoring' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
