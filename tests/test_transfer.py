"""The library: read once, save, load, ask under several queries; refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from acct.errors import ArtifactError, ConfigError, InputError
from tests.training.conftest import finished, tiny  # noqa: F401 (a fixture)

CONTEXT = "The teacher of Tami is Koba. The friend of Koba is Desu. The old river sleeps."


@pytest.fixture(scope="module")
def transfer(finished):  # noqa: F811
    from acct import ContextTransfer

    return ContextTransfer.from_pretrained(finished.paths.run)


def test_importing_the_package_is_cheap_and_lazy():
    import subprocess
    import sys

    code = "import sys, acct; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    root = Path(__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
    import acct

    with pytest.raises(AttributeError):
        acct.nothing  # noqa: B018


def test_states_are_read_once_and_answer_several_queries(transfer, tmp_path):
    states = transfer.read(CONTEXT)
    first = transfer.generate(states, "Who is the teacher of Tami?", max_new_tokens=6)
    assert isinstance(first, str) and transfer.generate(states, "Who is the teacher of Tami?", max_new_tokens=6) == first
    transfer.save(states, tmp_path / "states.safetensors")
    again = transfer.load(tmp_path / "states.safetensors")
    assert transfer.generate(again, "Who is the teacher of Tami?", max_new_tokens=6) == first
    assert isinstance(transfer.generate(again, "Who is the friend of Koba?", max_new_tokens=3), str)


def test_what_is_mounted_keeps_the_budget_and_says_that_it_is_no_native_state(transfer):
    states = transfer.read(CONTEXT)
    kv = transfer.transfer(states, "Who is the teacher of Tami?")
    n = int(states.context_lengths)
    assert kv.rotated and kv.identity["kind"] == "transferred"
    assert kv.identity["target"] == transfer.pair.target.fingerprint and kv.identity["retention"] == "0.25"
    assert "interface.compiler" in kv.identity and "source.model" in kv.identity
    assert len(kv.keys) == transfer.pair.geometry.units * transfer.interface.rule.resolve(n).mean_capacity


def test_the_protocol_is_that_of_training(transfer, finished):  # noqa: F811
    from acct.training.session import open_session

    with open_session(finished, record=False) as session:
        item = session.train.items[0]
    states = transfer.read(list(item.context_ids))
    assert states.context_ids[0].tolist() == list(item.context_ids)
    text = transfer.read(CONTEXT).context_ids[0].tolist()
    assert text[:1] == list(item.context_ids)[:1]


def test_equals_the_evaluations_acct_row(transfer, finished):  # noqa: F811
    from acct.methods.prepared import Prepared
    from acct.training.session import open_session

    with open_session(finished, record=False) as session:
        item = session.held_out.items[0]
    prepared = Prepared(transfer.pair, transfer.interface, [item])
    kv = transfer.transfer(transfer.read(list(item.context_ids)), list(item.query_ids))
    assert torch.equal(kv.selection.positions, prepared.compiled.selection.positions)
    assert torch.allclose(kv.keys, prepared.compiled.keys, atol=1e-4)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_texts_are_refused(transfer, text):
    with pytest.raises(InputError, match="context"):
        transfer.read(text)
    with pytest.raises(InputError, match="query"):
        transfer.generate(transfer.read(CONTEXT), text)


def test_the_shortest_contexts_work(transfer):
    states = transfer.read([5])
    assert isinstance(transfer.generate(states, "Who is the teacher of Tami?", max_new_tokens=2), str)


def test_states_of_another_model_are_refused(transfer):
    from dataclasses import replace

    states = transfer.read(CONTEXT)
    foreign = replace(states, identity={**states.identity, "model": "0" * 64})
    with pytest.raises(ArtifactError, match="model"):
        transfer.generate(foreign, "Who is the teacher of Tami?")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    from acct import ContextTransfer

    with pytest.raises(ArtifactError, match=r"no config\.yaml"):
        ContextTransfer.from_pretrained(tmp_path)
    (tmp_path / "config.yaml").write_text("nothing: here\n")
    with pytest.raises(ArtifactError, match="not a configuration"):
        ContextTransfer.from_pretrained(tmp_path)


def test_unfinished_mixed_and_moved_runs(finished, tmp_path):  # noqa: F811
    from acct import ContextTransfer

    moved = tmp_path / "moved"
    shutil.copytree(finished.paths.run, moved)
    assert ContextTransfer.from_pretrained(moved).interface.identity
    with pytest.raises(ArtifactError, match=r"budget\.retention"):
        ContextTransfer.from_pretrained(moved, **{"budget.retention": 0.5})
    with pytest.raises(ArtifactError, match=r"direction\.target"):
        ContextTransfer.from_pretrained(moved, **{"direction.target": "tiny:qwen3_source"})
    with pytest.raises(ConfigError, match="unknown or mistyped"):
        ContextTransfer.from_pretrained(moved, **{"budget.nothing": 1})
    weights = next((moved / "compiler").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="truncated or was changed"):
        ContextTransfer.from_pretrained(moved)
    shutil.rmtree(moved / "compiler")
    with pytest.raises(ArtifactError, match="no finished compiler"):
        ContextTransfer.from_pretrained(moved)
