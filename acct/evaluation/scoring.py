"""One batch under one mount: answers, candidate choices or continuation likelihoods as records (spec 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from acct.cache import MountedCache, mounted
from acct.data.prompts import EncodedExample
from acct.errors import ModelError
from acct.evaluation.metrics import AnswerCleaning, Reduction, accuracy, clean_answer, token_f1
from acct.evaluation.samples import Sample
from acct.generation import greedy, stop_tokens
from acct.likelihood import candidate_nll, continuation_nll
from acct.methods.base import Mount
from acct.models.adapter import ModelAdapter


@dataclass(frozen=True)
class ScoringRules:
    """How outputs become scores.

    Attributes:
        max_new_tokens: longest generated answer. cleaning: where it ends. reduction: of a candidate's token NLL.
        candidate_rows: most candidates scored in one forward; bounds memory.
    """

    max_new_tokens: int = 32
    cleaning: AnswerCleaning = field(default_factory=AnswerCleaning)
    reduction: Reduction = "mean"
    candidate_rows: int = 64


def stop_ids(adapter: ModelAdapter, tokenizer: Any) -> tuple[int, ...]:
    """Tokens that end an answer: the tokenizer's EOS and those of the model's own generation settings."""
    own = tokenizer.eos_token_id
    return tuple(sorted({*stop_tokens(adapter), *([] if own is None else [int(own)])}))


@torch.no_grad()
def score_batch(
    mount: Mount, sample: Sample, examples: Sequence[EncodedExample], tokenizer: Any, rules: ScoringRules
) -> list[dict[str, Any]]:
    """Records of a batch, without direction and method.

    Args:
        mount: what a method gave for these examples. sample: their task. tokenizer: decodes answers.
    Raises:
        ModelError: a likelihood is NaN or Inf.
    """
    with mounted(mount.adapter, mount.context, batch=len(examples)) as cache:
        memory = _memory(mount, cache, examples)
        if examples[0].kind == "generate":
            scores = _generated(mount, cache, examples, tokenizer, rules)
        else:
            scores = _likelihoods(mount, cache, examples, rules)
    rows = []
    for example, score, bytes_ in zip(examples, scores, memory):
        if not math.isfinite(score["score"]):
            raise ModelError(f"{example.id}: the score is {score['score']}; the mounted states or the model's logits hold NaN or Inf.")
        rows.append({
            "task": sample.task, "version": sample.version, "metric": sample.metric, "contextual": sample.contextual,
            "example": example.id, "prompt_hash": example.prompt_hash, **score, **bytes_, "dropped_tokens": example.dropped_tokens,
        })  # fmt: skip
    return rows


def _memory(mount: Mount, cache: MountedCache, examples: Sequence[EncodedExample]) -> list[dict[str, int]]:
    """Mounted bytes as measured on the cache, shared out by slots, and 2 P k d bytes per number, for each example."""
    if mount.context is None:
        before = [int(length) - len(example.query_ids) for length, example in zip(mount.query_lengths, examples)]
        return [{"context_tokens": tokens, "mounted_bytes": 0, "budget_bytes": 0} for tokens in before]
    selection = mount.context.selection
    slots = selection.counts.sum(dim=1).tolist()
    measured, number = cache.mounted_bytes(), torch.finfo(mount.adapter.dtype).bits // 8
    return [
        {
            "context_tokens": int(length), "mounted_bytes": round(measured * own / max(sum(slots), 1)),
            "budget_bytes": 2 * own * mount.adapter.geometry.head_dim * number,
        }
        for length, own in zip(selection.context_lengths, slots)
    ]  # fmt: skip


def _generated(
    mount: Mount, cache: MountedCache, examples: Sequence[EncodedExample], tokenizer: Any, rules: ScoringRules
) -> list[dict[str, Any]]:
    stops = stop_ids(mount.adapter, tokenizer)
    generated = greedy(mount.adapter, cache, mount.query_ids, mount.query_lengths, rules.max_new_tokens, stops)
    rows = []
    for example, ids in zip(examples, generated.tokens):
        text = clean_answer(tokenizer.decode(ids, skip_special_tokens=True), rules.cleaning)
        rows.append({"prediction": text, "score": token_f1(text, example.answers), "nll_sum": None, "tokens": len(ids)})
    return rows


def _likelihoods(mount: Mount, cache: MountedCache, examples: Sequence[EncodedExample], rules: ScoringRules) -> list[dict[str, Any]]:
    candidates = [[list(ids) for ids in example.candidate_ids] for example in examples]
    if examples[0].kind == "perplexity":
        ids = [own[0] for own in candidates]
        nlls = [[nll] for nll in continuation_nll(mount.adapter, cache, mount.query_ids, mount.query_lengths, ids)]
    else:
        nlls = candidate_nll(mount.adapter, cache, mount.query_ids, mount.query_lengths, candidates, rules.candidate_rows)
    rows = []
    for example, own in zip(examples, nlls):
        by_candidate = [nll.tolist() for nll in own]
        gold = 0 if example.gold is None else example.gold
        scored = by_candidate[gold][example.score_from[gold] :]
        total = math.fsum(scored)
        if example.kind == "perplexity":
            score, prediction = math.exp(min(total / len(scored), 700.0)), ""
        else:
            score, chosen = accuracy(by_candidate, example.score_from, gold, rules.reduction)
            prediction = str(chosen)
        rows.append({"prediction": prediction, "score": score, "nll_sum": total, "tokens": len(scored)})
    return rows
