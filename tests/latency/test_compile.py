"""`latency.compile`: Cartographer and Compiler through torch.compile give what they give without it, and its cost is kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acct.config.root import compose
from acct.errors import ConfigError
from acct.geometry import PairGeometry
from acct.latency.measure import Suite
from acct.latency.records import document
from acct.latency.stages import Conversion, Receiver, placed_interface, random_interface, random_states
from acct.latency.tables import latency_tables
from acct.models.registry import adapter_for
from tests.latency.test_suite import configured
from tests.tiny import tiny_model

CPU = torch.device("cpu")


def conversions(backend: str) -> tuple[Conversion, Conversion]:
    """The same random modules without and with torch.compile."""
    config = compose(["debug=tiny", "budget.tail_tokens=4"])
    source, target = (adapter_for(tiny_model("qwen3", size=size)) for size in ("source", "target"))
    geometry, receiver = PairGeometry(source.geometry, target.geometry), Receiver(target.geometry, target.rotary, CPU, torch.float32)
    built = (placed_interface(random_interface(config, geometry, 0), CPU, torch.float32, one) for one in (None, backend))
    plain, compiled = (Conversion(geometry, interface, receiver) for interface in built)
    return plain, compiled


@pytest.mark.slow
@torch.no_grad()
def test_the_compiled_conversion_is_the_plain_one() -> None:
    """Through Dynamo alone, which needs no compiler: graphs and their breaks are those of every backend."""
    torch._dynamo.reset()
    plain, compiled = conversions("eager")
    assert isinstance(compiled.interface.compiler, torch._dynamo.OptimizedModule)
    assert isinstance(compiled.interface.cartographer, torch._dynamo.OptimizedModule)
    for tokens in (30, 47):  # another length after the first: nothing of the first shape may stay
        states = random_states(plain.geometry.source, tokens, 5, torch.float32, CPU, torch.Generator().manual_seed(tokens))
        expected, found = plain.convert(states), compiled.convert(states)
        assert torch.equal(found.selection.positions, expected.selection.positions)
        assert torch.equal(found.keys, expected.keys) and torch.equal(found.values, expected.values)


@pytest.mark.slow
def test_its_cost_stands_beside_the_stages_and_not_in_them(tmp_path: Path) -> None:
    torch._dynamo.reset()
    more = ("latency.compile=true", "latency.compile_backend=eager", "latency.inputs=random", "latency.context_tokens=[40]")
    config = configured(tmp_path, *more)
    found = document(config, Suite(config).run(), "here")
    (record,) = found["records"]
    first = record["stages"]["compiler"]["warmup_ms"][0]
    assert record["compile_ms"] > first, "the warm-up call comes after it"
    (table,) = (table for table in latency_tables([found]) if table.name == "latency_comparison")
    assert table.notes == (f"- tiny_qwen3, 40 tokens: compiled (eager) in the first conversion, {record['compile_ms'] / 1e3:.1f} s.",)
    plain = document(configured(tmp_path), Suite(configured(tmp_path, "latency.context_tokens=[40]")).run(), "here")
    assert plain["records"][0]["compile_ms"] is None


def test_a_backend_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"latency\.compile_backend must be one of inductor, aot_eager, eager; got 'xla'"):
        compose(["latency.compile_backend=xla"])
