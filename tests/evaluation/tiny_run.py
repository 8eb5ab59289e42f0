"""A tiny pair with a random interface and encoded examples of all three kinds: what the end-to-end tests run on."""

from __future__ import annotations

import hashlib
import random

import torch

from acct.allocator.allocator import Allocator
from acct.allocator.budget import BudgetRule
from acct.cartographer import Cartographer, CartographerShape
from acct.compiler.bridge import Bridge
from acct.compiler.compiler import Compiler
from acct.compiler.residual import Residual, ResidualShape
from acct.data.prompts import EncodedExample
from acct.evaluation.samples import Sample
from acct.models.pair import Pair
from acct.pipeline import Interface
from tests.tiny import VOCABULARY, tiny_pair

__all__ = ["interface_for", "sample", "samples", "tiny_pair"]


def interface_for(pair: Pair, retention: float = 0.5, tail: int = 2, seed: int = 0, **changes) -> Interface:
    """Random modules of the right shapes; the residual's readout is not zero, and units differ in capacity."""
    geometry = pair.geometry
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cartographer = Cartographer(geometry, CartographerShape(width=16, attention_width=12, code_width=4))
        allocator = Allocator(geometry.units)
        bridge = Bridge(geometry)
        target = geometry.target
        shape = ResidualShape(geometry.source.hidden, geometry.units, target.head_dim, 32, 32, 1, 4)
        residual = Residual(shape)
        with torch.no_grad():
            allocator.preferences.normal_()
            for parameter in (*bridge.parameters(), residual.key_readout, residual.value_readout, residual.condition_map):
                parameter.normal_(0.0, 0.3)
    modules = {"cartographer": cartographer, "allocator": allocator, "compiler": Compiler(bridge, residual).eval()}
    return Interface(rule=BudgetRule(retention, tail), identity={"compiler": f"random {seed}"}, **{**modules, **changes})


def sample(kind: str = "generate", task: str | None = None, lengths: tuple[int, ...] = (12, 7, 15, 9, 20), seed: int = 0) -> Sample:
    """Examples of random words with different N and Q; metric and name follow the kind."""
    metric = {"generate": "f1", "choice": "accuracy", "perplexity": "perplexity"}[kind]
    task = task or {"generate": "search_qa", "choice": "boolq", "perplexity": "wikitext"}[kind]
    rng = random.Random(f"{seed} {task}")

    def words(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(4, VOCABULARY) for _ in range(count))

    examples = []
    for index, length in enumerate(lengths):
        query = words(3 + index % 3)
        candidates = {"generate": (), "choice": (words(1), words(3)), "perplexity": (words(5 + index),)}[kind]
        context = words(length)
        examples.append(
            EncodedExample(
                id=f"{task}/{index:05d}", task=task, kind=kind, context_ids=context, query_ids=query, bare_query_ids=(1, *query),
                candidate_ids=candidates, score_from=(0,) * len(candidates), gold=index % 2 if kind == "choice" else None,
                answers=("w9 w10",) if kind == "generate" else (), answer_ids=(), protocol="completion-v2", style="base", dropped_tokens=0,
                truncation_keeps="head", prompt_hash=hashlib.sha256(repr((context, query, candidates)).encode()).hexdigest()[:16],
            )
        )  # fmt: skip
    return Sample(task, 1, metric, kind != "perplexity", tuple(examples))


def samples() -> dict[str, Sample]:
    """One task of each kind."""
    found = [sample(kind) for kind in ("generate", "choice", "perplexity")]
    return {one.task: one for one in found}
