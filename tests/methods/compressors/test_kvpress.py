"""Scores, kept tokens and layer budgets against kvpress itself (extra `baselines`), which runs in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.tiny import FAMILIES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("kvpress") is None, reason="kvpress is not installed: pip install -e '.[baselines]' (transformers below 5.3)"
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, object]:
    command = [sys.executable, "-m", "tests.methods.compressors.kvpress_parity"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "observed_attention", "expected_attention"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_kept_tokens_and_budgets_are_those_of_kvpress(outcomes: dict[str, object], family: str, name: str) -> None:
    outcome = outcomes[f"{family} {name}"]
    assert isinstance(outcome, float), outcome
