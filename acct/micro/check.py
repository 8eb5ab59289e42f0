"""What the embedded models must do, measured: they answer from their context, and the states of a pair are nearly linear in one another.

Two checks stand before everything that is built on a pair. A model that guesses, or a pair that shares nothing, would make every
later table meaningless.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acct.data.batches import padded
from acct.data.prompts import EncodedExample, encode
from acct.data.tasks.registry import get_task
from acct.evaluation.metrics import token_f1
from acct.geometry import head_map, layer_map, tap_indices
from acct.micro.alignment import Reading, gather_reading, reading_of
from acct.micro.datasets import rows
from acct.micro.language import build_tokenizer


def encoded(task: str, split: str, count: int, chat: bool) -> list[EncodedExample]:
    """Examples of one task as the family's prompts."""
    tokenizer = build_tokenizer(chat)
    made = get_task(task).examples(rows(task, split, count), tokenizer)
    return [encode(example, tokenizer) for example in made[:count]]


@torch.no_grad()
def answers(model: PreTrainedModel, prompts: list[list[int]], new_tokens: int = 4) -> list[list[int]]:
    """Greedy continuations, prompt by prompt, by transformers' own `generate`: independent of the rest of the package."""
    stop, out = model.config.eos_token_id, []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, pad_token_id=stop)
        row = made[0, len(prompt) :].tolist()
        out.append(row[: row.index(stop)] if stop in row else row)
    return out


def question_answering_f1(model: PreTrainedModel, examples: list[EncodedExample], chat: bool, context: bool) -> float:
    """Mean token F1 in percent of greedy answers, with the context or without it."""
    tokenizer = build_tokenizer(chat)
    prompts = [list(e.context_ids + e.query_ids) if context else list(e.bare_query_ids) for e in examples]
    made = [tokenizer.decode(ids).split(".")[0] for ids in answers(model, prompts)]
    return 100 * sum(token_f1(text, example.answers) for text, example in zip(made, examples)) / len(examples)


@torch.no_grad()
def choice_accuracy(model: PreTrainedModel, examples: list[EncodedExample], context: bool = True) -> float:
    """Accuracy in percent by mean candidate log-likelihood; the candidates of an example continue one run over its prompt."""
    right = 0
    for example in examples:
        prompt = list(example.context_ids + example.query_ids) if context else list(example.bare_query_ids)
        candidates = [list(candidate) for candidate in example.candidate_ids]
        read = model(input_ids=torch.tensor([prompt]), use_cache=True)
        read.past_key_values.batch_repeat_interleave(len(candidates))
        ids, _ = padded(candidates)  # [candidate, width]
        logits = model(input_ids=ids, past_key_values=read.past_key_values, use_cache=True).logits
        first = read.logits[:, -1:].expand(len(candidates), -1, -1)
        likelihood = torch.cat([first, logits[:, :-1]], dim=1).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        scores = [float(row[start : len(candidate)].mean()) for row, candidate, start in zip(likelihood, candidates, example.score_from)]
        right += scores.index(max(scores)) == example.gold
    return 100 * right / len(examples)


@torch.no_grad()
def states(model: PreTrainedModel, examples: list[EncodedExample]) -> Reading:
    """Hidden states, keys after native normalisation and before RoPE, and values of the contexts."""
    readings = []
    for example in examples:
        ids = torch.tensor([example.context_ids])
        with reading_of(model) as seen:
            hidden = model.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        readings.append(gather_reading(hidden, seen, torch.ones_like(ids, dtype=torch.bool)))
    return Reading(*([torch.cat(parts) for parts in zip(*(vars(r)[name] for r in readings))] for name in ("hidden", "keys", "values")))


def held_out_r2(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor, ridge: float = 1e-2) -> float:
    """R2 on the test rows of the affine ridge map fitted on the others, float64."""
    x, y, x_test, y_test = (t.double().flatten(1) for t in (x, y, x_test, y_test))
    mean_x, mean_y = x.mean(0), y.mean(0)
    gram = (x - mean_x).mT @ (x - mean_x)
    gram.diagonal().add_(ridge)
    solved = torch.linalg.solve(gram, (x - mean_x).mT @ (y - mean_y))
    wrong = (y_test - mean_y - (x_test - mean_x) @ solved).square().sum()
    return float(1 - wrong / (y_test - y_test.mean(0)).square().sum())


def pair_linearity(source: PreTrainedModel, target: PreTrainedModel, fit: list[EncodedExample], test: list[EncodedExample]) -> dict:
    """Held-out R2 per target layer of keys and values, from three sets of source states.

    Returns:
        {"bridge", "compiler", "all"} -> {"keys", "values"} -> one number per target layer. "bridge": the one source head that the
        Bridge reads; "compiler": final layer and taps, which the residual reads; "all": keys and values of all source layers.
    """
    x, y, x_test, y_test = states(source, fit), states(target, fit), states(source, test), states(target, test)
    depth = layer_map(len(y.keys), len(x.keys))
    heads = head_map(y.keys[0].shape[1], x.keys[0].shape[1])
    taps = (*tap_indices(len(x.keys)), -1)

    def features(s: Reading, kind: str, name: str, layer: int) -> list[Tensor]:
        own = getattr(s, name)
        if kind == "bridge":
            return [own[depth[layer]][:, heads[head]] for head in range(y.keys[0].shape[1])]
        if kind == "compiler":
            return [torch.cat([s.hidden[tap] for tap in taps], -1)]
        return [torch.cat([part.flatten(1) for part in (*s.keys, *s.values)], -1)]

    report: dict[str, dict[str, list[float]]] = {}
    for kind in ("bridge", "compiler", "all"):
        report[kind] = {}
        for name in ("keys", "values"):
            per_layer = []
            for layer in range(len(y.keys)):
                a, b = features(x, kind, name, layer), features(x_test, kind, name, layer)
                wanted, wanted_test = getattr(y, name)[layer], getattr(y_test, name)[layer]
                if kind == "bridge":
                    each = [held_out_r2(p, wanted[:, h], q, wanted_test[:, h]) for h, (p, q) in enumerate(zip(a, b))]
                    per_layer.append(sum(each) / len(each))
                else:
                    per_layer.append(held_out_r2(a[0], wanted, b[0], wanted_test))
            report[kind][name] = per_layer
    return report
