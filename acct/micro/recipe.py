"""Train one embedded model on one CPU thread until it answers from its context: a small one from nothing, a large one grown out of it.

Learning to look things up from answers alone stalls at guessing one of the document's names: the gradient is flat until every
link of the circuit exists. So four layers get *attention supervision* while training, the negative log of the attention mass
that chosen heads give to the positions they should look at. It leaves no trace in the saved model but its weights.

    spell    the end of a name looks at its start, so that a name's last token carries the whole name
    gather   a value looks at its fact's entity (head 0), relation (1) and verb (3);
             an answer looks at the question's entity (0), its relation or craft (1) and its outer relation or candidate (2);
             an option of several looks at its letter (3);
             after a base prompt, the rows of a question that gather nothing look at the document's first token, a sink (2, 3)
    find     an answer looks at the value of the fact asked for, or at the right option (0, 2)
    follow   two hops: at the second fact's value (0); yes/no: at the candidate if it is the value found, else at the question (2)

The large model of a family is grown out of the small one (`growth`) and trained on beside it: besides its own losses, its states,
keys and values are asked to stay linear images of the small model's at the same relative depth, and the reverse. That gives the
family the property on which context transfer rests and which larger families have from their size: states that are nearly
linear in one another. At the end the grown model's heads are shuffled: head numbers of two models mean nothing to each other.
"""

from __future__ import annotations

import json
import logging
import math
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from acct.micro.alignment import alignment, gather_reading, reading_of
from acct.micro.batches import IGNORE, Batch, Prompter, make_batch
from acct.micro.families import CHAT, CIRCUITS, build
from acct.micro.growth import grow, shuffle_heads
from acct.micro.language import WORDS, save_tokenizer
from acct.micro.muon import Muon

log = logging.getLogger(__name__)
ATTENTION = "acct_micro_supervised"


@dataclass(frozen=True)
class Recipe:
    """Everything that fixes a model besides its shape.

    Attributes:
        steps: optimizer steps. rows, questions, tokens: most documents in a batch, questions on each, rough limit of tokens.
        facts: curriculum, most facts in a document; the next level starts when 90% of the look-ups are right.
        mix_from: level from which the other kinds of question join.
        matrix_rate, other_rate: peak learning rates (Muon for the layers' matrices, AdamW for the rest).
        language_weight, attention_weight, alignment_weight: weights beside the answers' cross entropy.
        code_width, code_scale: width and root mean square of the random code of the vocabulary in the embeddings.
    """

    steps: int
    seed: int = 0
    rows: int = 10
    questions: int = 8
    tokens: int = 3200
    facts: tuple[int, ...] = (4, 8, 16, 24, 32)
    fillers: int = 14
    mix_from: int = 2
    matrix_rate: float = 0.015
    other_rate: float = 3e-3
    language_weight: float = 0.05
    attention_weight: float = 1.0
    alignment_weight: float = 1.0
    code_width: int = 64
    code_scale: float = 0.3


class Supervision:
    """Collects the attention loss of the supervised heads during one forward."""

    def __init__(self, family_size: str):
        circuit = CIRCUITS[family_size]
        self.stage_of_layer = {layer: stage for stage, layer in asdict(circuit).items()}
        self.targets: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
        self.losses: dict[tuple[str, int], Tensor] = {}

    def attention(self, module, query, key, value, attention_mask, scaling=None, **kwargs):
        """SDPA, and on the way the loss of this layer's supervised heads."""
        stage = self.stage_of_layer.get(module.layer_idx)
        group = query.shape[1] // key.shape[1]
        for (name, head), (rows, columns) in self.targets.items():
            if name != stage:
                continue
            at = torch.arange(rows.shape[0])[:, None]
            logits = torch.einsum("bnd,bkd->bnk", query[at, head, rows], key[:, head // group]) * scaling
            logits = logits.masked_fill(~attention_mask[at, 0, rows], -math.inf)
            wanted = logits.gather(-1, columns.clamp_min(0)).masked_fill(columns < 0, -math.inf)
            used = columns[..., 0] >= 0
            self.losses[name, head] = (logits.logsumexp(-1) - _mass(wanted))[used].mean()
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


def _mass(wanted: Tensor) -> Tensor:
    """log sum exp over the wanted columns; 0 for unused rows, so that no NaN reaches the gradient."""
    used = (wanted > -math.inf).any(-1, keepdim=True)
    return torch.where(used, wanted, torch.zeros_like(wanted)).logsumexp(-1)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Short warm-up, constant, then a linear fall over the last 45%."""
    return peak * min(1.0, (step + 1) / 40, max(0.02, (steps - step) / (0.45 * steps)))


@torch.no_grad()
def code_embeddings(model: PreTrainedModel, width: int, scale: float) -> None:
    """Start the embeddings from one random code of the vocabulary for all families, lifted to the model's width by an orthonormal map."""
    code = torch.randn(len(WORDS), width, generator=torch.Generator().manual_seed(1))
    table = model.get_input_embeddings().weight
    lift = torch.linalg.qr(torch.randn(table.shape[1], width, generator=torch.Generator().manual_seed(2)))[0].T
    lifted = F.normalize(code, dim=1) @ lift
    table.copy_(lifted * scale * table.shape[1] ** 0.5)


SMALL_STEPS = {"qwen3": 700, "llama": 1000, "qwen2": 1000}  # without normalised queries and keys the look-up takes longer to form
LARGE_STEPS = {"qwen3": 300, "llama": 300, "qwen2": 600}  # until it answers better than the small one


def recipe_of(family: str, size: str) -> Recipe:
    """The small model's training from nothing, or the large one's from where the small one ended."""
    if size == "small":
        return Recipe(steps=SMALL_STEPS[family])
    return Recipe(
        steps=LARGE_STEPS[family], seed=1, facts=(16, 24, 32), mix_from=0, matrix_rate=0.005, other_rate=1e-3, alignment_weight=10.0
    )


@dataclass
class Losses:
    answer: Tensor
    language: Tensor
    attention: Tensor
    alignment: Tensor
    right: dict[str, list[float]]


def batch_losses(
    model: PreTrainedModel, batch: Batch, supervision: Supervision, supervise: bool, relative: PreTrainedModel | None
) -> Losses:
    """Answer, language-model, attention and alignment losses, and which first answer tokens were right by kind of question.

    `relative` is the frozen model of the family to stay linear in, if any.
    """
    supervision.targets, supervision.losses = (batch.targets if supervise else {}), {}
    inputs = dict(input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.mask, use_cache=False)
    with reading_of(model) as own:
        output = model(**inputs, output_hidden_states=relative is not None)
    logits = output.logits
    answered = batch.labels != IGNORE
    answer = F.cross_entropy(logits[answered], batch.labels[answered])
    follows = (batch.blocks[:, :-1] == batch.blocks[:, 1:]) & (batch.blocks[:, 1:] >= 0) & ~answered[:, :-1]
    language = F.cross_entropy(logits[:, :-1][follows], batch.ids[:, 1:][follows])
    best, right = logits.detach().argmax(-1), {}
    for row, at, kind in batch.answers:
        right.setdefault(kind, []).append(float(best[row, at] == batch.labels[row, at]))
    attention = sum(supervision.losses.values()) / len(supervision.losses) if supervise else torch.zeros(())
    aligned = torch.zeros(())
    if relative is not None:
        real = batch.blocks >= 0
        with torch.no_grad(), reading_of(relative) as seen:
            hidden = relative(**inputs, output_hidden_states=True, logits_to_keep=1).hidden_states
        other, mine = gather_reading(hidden, seen, real), gather_reading(output.hidden_states, own, real)
        aligned = torch.stack([*alignment(other, mine), *alignment(mine, other)]).mean()
    return Losses(answer, language, attention, aligned, right)


def train(family: str, size: str, recipe: Recipe, folder: Path, relative: PreTrainedModel | None = None) -> dict[str, Any]:
    """Train one model and save it (bf16) with its tokenizer; returns the record saved beside it.

    Without a `relative` it starts from nothing. With one, the trained small model, it is grown out of that, stays aligned to it, and its
    heads are shuffled at the end.
    """
    if relative is None:
        model = build(family, size, recipe.seed)
        code_embeddings(model, recipe.code_width, recipe.code_scale)
    else:
        model = grow(relative, family, recipe.seed)
    began = time.time()
    last = run_recipe(family, size, recipe, model, relative)
    if relative is not None:
        shuffle_heads(model, recipe.seed)
    record = {"family": family, "size": size, "recipe": asdict(recipe), "seconds": round(time.time() - began), "last": last}
    model.eval()
    model.set_attn_implementation("sdpa")
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(CHAT[family], folder)
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    return record


def run_recipe(family: str, size: str, recipe: Recipe, model: PreTrainedModel, relative: PreTrainedModel | None) -> dict[str, float]:
    """Train the model in place; returns the smoothed share of right first answer tokens by kind of question."""
    rng, prompter, supervision = random.Random(recipe.seed), Prompter(CHAT[family]), Supervision(size)
    AttentionInterface.register(ATTENTION, supervision.attention)
    model.set_attn_implementation(ATTENTION)
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    optimizers = [
        (Muon(matrices, recipe.matrix_rate), recipe.matrix_rate),
        (torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.98), weight_decay=0.0), recipe.other_rate),
    ]
    level, mixed, smooth, began = 0, False, {"lookup": 0.0}, time.time()
    for step in range(recipe.steps):
        most = recipe.facts[level]
        facts = rng.randint(max(4, most // 2), most)
        fillers = rng.choice((0, recipe.fillers)) if level > 1 else 0
        rows = max(3, min(recipe.rows, recipe.tokens // (9 * facts + 3 * fillers + 27 * recipe.questions)))
        batch = make_batch(rng, rows, facts, recipe.questions, fillers, mixed, prompter)
        weight = recipe.attention_weight * min(1.0, max(0.0, (0.9 * recipe.steps - step) / (0.2 * recipe.steps)))
        for optimizer, peak in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, recipe.steps, peak)
        losses = batch_losses(model, batch, supervision, weight > 0, relative)
        total = losses.answer + recipe.language_weight * losses.language + weight * losses.attention
        (total + recipe.alignment_weight * losses.alignment).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for kind, hits in losses.right.items():
            smooth[kind] = 0.9 * smooth.get(kind, 0.0) + 0.1 * sum(hits) / len(hits)
        if smooth["lookup"] > 0.9 and level + 1 < len(recipe.facts):
            level, smooth["lookup"] = level + 1, 0.6
            mixed = level >= recipe.mix_from
        if step % 20 == 0 or step + 1 == recipe.steps:
            elapsed = time.time() - began
            heads = " ".join(f"{name}{head}:{float(value.detach()):.2f}" for (name, head), value in sorted(supervision.losses.items()))
            scores = " ".join(f"{kind}:{value:.2f}" for kind, value in smooth.items())
            log.info(
                "%s_%s step %d/%d %.0fs, about %.0fs left, facts %d, answer %.3f language %.3f alignment %.3f | %s | %s",
                *(family, size, step, recipe.steps, elapsed, elapsed / (step + 1) * (recipe.steps - step - 1), most),
                *(losses.answer.item(), losses.language.item(), losses.alignment.item(), heads, scores),
            )
    return smooth
