"""On an embedded model that answers from its context, SnapKV that sees the question must keep what the answer needs."""

from __future__ import annotations

import pytest
import torch

from acct.evaluation.samples import Sample
from acct.evaluation.scoring import ScoringRules, score_batch
from acct.methods.prepared import Prepared
from acct.methods.registry import get_method
from acct.micro.build import load
from acct.micro.check import encoded
from acct.micro.families import CHAT, MODELS
from acct.micro.language import build_tokenizer
from acct.models.pair import Pair
from acct.models.registry import adapter_for
from tests.evaluation.tiny_run import interface_for


@pytest.fixture(scope="module")
def f1() -> dict[str, float]:
    """Mean F1 in percent on 12 TriviaQA examples at 4x: target's own states, equal capacity, tail of scale=micro."""
    family = "qwen3"
    source, target = (adapter_for(load(family, size, MODELS)) for size in ("small", "large"))
    pair = Pair.of(source, target, build_tokenizer(CHAT[family]))
    one = Sample("trivia_qa", 1, "f1", True, tuple(encoded("trivia_qa", "test", 12, CHAT[family])))
    interface = interface_for(pair, 0.25, 8, cartographer=None, allocator=None, ranking="random")
    prepared = Prepared(pair, interface, one.examples)
    found = {}
    with torch.no_grad():
        for name in ("target_full", "random", "snapkv", "snapkv_query_aware"):
            records = score_batch(get_method(name).mount(prepared), one, one.examples, pair.tokenizer, ScoringRules(max_new_tokens=8))
            found[name] = 100 * sum(record["score"] for record in records) / len(records)
    return found


def test_snapkv_with_the_query_beats_random_selection(f1: dict[str, float]) -> None:
    assert f1["snapkv_query_aware"] >= f1["random"] + 15, f1


def test_compression_before_the_question_costs_answers(f1: dict[str, float]) -> None:
    assert f1["snapkv"] <= f1["snapkv_query_aware"] <= f1["target_full"] + 10, f1
