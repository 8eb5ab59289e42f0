"""Training batches of the embedded models: documents, many questions on each, and the positions that attention should find.

Several questions share one document in a row: each sees the document and itself only, at the positions that it would have alone,
so every one is trained exactly as it is asked later. Items of fixed knowledge see themselves only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from acct.micro.datasets import craft_question, two_crafts, weather
from acct.micro.language import BOS, CRAFTS, EOS, ID, NOUNS, PAD, RELATIONS, STARTS, TURN_END, names
from acct.micro.world import (
    Document,
    Fact,
    ask_among,
    ask_whether,
    ask_which,
    ask_who,
    begin_meeting,
    hop_phrase,
    write_document,
)

IGNORE = -100
RELATION_IDS = frozenset(ID[word] for word in RELATIONS)
CRAFT_IDS = frozenset(ID[word] for craft in CRAFTS for word in craft)
END_IDS = frozenset(number for word, number in ID.items() if word.startswith("##"))
PIECE = re.compile(r"<\|\w+\|>|\n|\w+|[^\w\s]")
KINDS = ("lookup", "yes/no", "doubt", "two-hop", "complete")
MAX_COLUMNS = 4


@lru_cache(maxsize=8192)
def _word(word: str) -> tuple[int, ...]:
    if word in ID:
        return (ID[word],)
    return ID[word[:2]], ID["##" + word[2:]]


def encode(text: str) -> list[int]:
    """Token ids of a text of the world; equal to the families' tokenizers (tested), and faster."""
    return [number for word in PIECE.findall(text) for number in _word(word)]


@dataclass
class Target:
    """Row `row` of stage `stage`, head `head`, should attend to one of `columns`."""

    stage: str
    head: int
    row: int
    columns: tuple[int, ...]


@dataclass
class Block:
    """A run of tokens with its own positions: the document (number 0) or one question.

    `labels` are the offsets whose next token is an answer token; `kind` names what is asked.
    """

    ids: list[int]
    sees_document: bool
    labels: list[int] = field(default_factory=list)
    kind: str = ""
    targets: list[Target] = field(default_factory=list)


@dataclass(frozen=True)
class Places:
    """Token positions of a document: where each fact's value ends, one position for each time it is stated."""

    value_ends: dict[tuple[str, str], list[int]]


def _name_ends(ids: Sequence[int], offset: int = 0) -> list[int]:
    return [offset + i for i, token in enumerate(ids) if token in END_IDS]


def _relations(ids: Sequence[int]) -> list[int]:
    return [i for i, token in enumerate(ids) if token in RELATION_IDS]


def document_block(rng: random.Random, document: Document, prefix: list[int], suffix: list[int]) -> tuple[Block, Places]:
    """The document as tokens, with targets: name ends look at their starts, values at their fact's entity, relation and verb.

    Half of the documents are cut into paragraphs, a line or an empty line apart, some under a heading.
    """
    block, ends = Block(list(prefix), True), {}
    paragraphs, gap = rng.random() < 0.5, rng.choice((1, 1, 2))
    if paragraphs and rng.random() < 0.3:
        block.ids += encode(f"= {rng.choice(list(document.facts.values())).entity} =\n")
    for number, sentence in enumerate(document.sentences):
        if number and paragraphs and rng.random() < 0.4:
            block.ids += [ID["\n"]] * gap
        ids, start = encode(sentence.text), len(block.ids)
        block.ids += ids
        if sentence.fact is not None:
            entity, value = _name_ends(ids, start)
            relation = start + _relations(ids)[0]
            ends.setdefault(sentence.fact.key, []).append(value)
            for row in (value - 1, value):
                block.targets += [
                    Target("gather", 0, row, (entity,)),
                    Target("gather", 1, row, (relation,)),
                    Target("gather", 3, row, (value - 2,)),
                ]
    block.targets += [Target("spell", 0, end, (end - 1,)) for end in _name_ends(block.ids)]
    block.ids += suffix
    return block, Places(ends)


class Prompter:
    """Prompts of a family, in the protocols of spec 7: chat turns, or Base style with one BOS and two newlines."""

    def __init__(self, chat: bool):
        self.chat = chat
        self.document_prefix = encode("<|im_start|>user\n") if chat else [ID[BOS]]
        self.document_suffix = encode("\n\n")
        self.plain_prefix = [] if chat else [ID[BOS]]
        self.before_answer = encode("<|im_end|>\n<|im_start|>assistant\nAnswer: The answer is" if chat else "\nAnswer: The answer is")
        self.stop = ID[TURN_END if chat else EOS]


def question_block(rng: random.Random, document: Document, places: Places, kind: str, prompter: Prompter) -> Block:
    """One question on the document with its answer and the attention that answers it (see `recipe`)."""
    if (kind == "two-hop" and not document.chains()) or (kind == "doubt" and not document.doubts()):
        kind = "lookup"
    hops: list[Fact]
    candidate: str | None = None
    if kind == "two-hop":
        hops = list(rng.choice(document.chains()))
        text, answer = f"Question: {' '.join(hop_phrase(*hops)).replace('_', ' ')}?", hops[1].value
    elif kind in ("yes/no", "doubt"):
        hops = [rng.choice(document.doubts() if kind == "doubt" else document.certain())]
        candidate = hops[0].value
        answer = "maybe" if kind == "doubt" else "yes"
        if kind == "yes/no" and rng.random() < 0.5:
            values = sorted({fact.value for fact in document.facts.values()} - {candidate})
            candidate, answer = rng.choice(values), "no"
        text = f"Question: {ask_whether(hops[0], candidate, rng.random() < 0.5)}"
    else:
        hops = [rng.choice(document.certain())]
        text, answer = f"Question: {rng.choice((ask_who, ask_which, ask_among))(hops[0])}", hops[0].value
    if kind == "complete":
        prompt = encode(begin_meeting(hops[0]))
        tail = [*encode(f"in the {rng.choice(NOUNS)}."), prompter.stop]
    else:
        prompt = encode(text) + prompter.before_answer
        tail = [ID["."], prompter.stop]
    answered = encode(answer)
    block = Block(prompt + answered + tail, True, list(range(len(prompt) - 1, len(prompt) + len(answered) + len(tail) - 1)), kind)
    name_ends, relations = _name_ends(prompt), _relations(prompt)
    entity, inner = name_ends[-1], relations[-1]
    extra = relations[0] if kind == "two-hop" else name_ends[0] if candidate else None
    first = places.value_ends[hops[0].key]
    rows = [len(prompt) - 1] + ([len(prompt)] if len(answered) == 2 else [])
    block.targets += [Target("spell", 0, end, (end - 1,)) for end in name_ends]
    if not prompter.chat:  # without a turn's fixed opening, rows that gather nothing would rest on any of many full stops, not on a sink
        block.targets += [Target("gather", head, row, (-1,)) for row in range(len(prompt) - 1) for head in (2, 3)]
    for row in rows:
        block.targets += [Target("gather", 0, row, (entity,)), Target("gather", 1, row, (inner,))]
        if extra is not None:
            block.targets.append(Target("gather", 2, row, (extra,)))
        for head in (0, 2):  # document positions are negative numbers minus one: they are shifted by the packer
            block.targets.append(Target("find", head, row, tuple(-1 - place for place in first[:MAX_COLUMNS])))
        if kind == "two-hop":
            block.targets.append(Target("follow", 0, row, tuple(-1 - place for place in places.value_ends[hops[1].key][:MAX_COLUMNS])))
        if candidate is not None and kind == "yes/no":
            block.targets.append(Target("follow", 2, row, (name_ends[0] if answer == "yes" else 0,)))
    return block


def knowledge_block(rng: random.Random, people: Sequence[str], prompter: Prompter) -> Block:
    """One item of mmlu, piqa or winogrande: what the world's crafts make and need."""
    kind = rng.choice(("mmlu", "mmlu", "piqa", "winogrande"))
    if kind == "mmlu":
        question, choices, place = craft_question(rng)
        options = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", choices))
        prompt, answer = encode(f"Question: {weather(rng, 0, 4)} {question}\n{options}\nAnswer:"), encode("ABCD"[place])
    elif kind == "piqa":
        craft = rng.choice(CRAFTS)
        prompt, answer = encode(f"Question: {weather(rng, 0, 4)} to make {craft[1]}\nAnswer:"), encode(f"use the {craft[2]}.")
    else:
        opening, pair, meant, rest = two_crafts(rng, people)
        prompt, answer = encode(f"{weather(rng, 0, 4)} {opening} {pair[meant]}"), encode(rest)
    prompt = prompter.plain_prefix + prompt
    whole = prompt + answer + [prompter.stop]
    block = Block(whole, False, list(range(len(prompt) - 1, len(whole) - 1)), kind)
    block.targets = [Target("spell", 0, end, (end - 1,)) for end in _name_ends(whole)]
    crafts = [at for at, token in enumerate(prompt) if token in CRAFT_IDS]
    if kind == "mmlu":
        asked, options_at = crafts[0], crafts[1:]
        block.targets += [Target("gather", 3, option, (option - 2,)) for option in options_at]
        block.targets += [Target("gather", 1, len(prompt) - 1, (asked,))]
        block.targets += [Target("find", head, len(prompt) - 1, (options_at[place],)) for head in (0, 2)]
    elif kind == "piqa":
        block.targets += [Target("gather", 1, len(prompt) + 1, (crafts[0],))]  # at "the", whose next token is the tool
    return block


@dataclass(frozen=True)
class Batch:
    """Packed rows.

    Attributes:
        ids, positions, labels, blocks: int64 [row, token]; labels are IGNORE off the answers; blocks are -1 at padding, 0 in the document.
        mask: bool [row, 1, token, token], who sees whom.
        answers: (row, token, kind) of the first answer token of each question.
        targets: {(stage, head): (rows int64 [row, target], columns int64 [row, target, MAX_COLUMNS], -1 where unused)}.
    """

    ids: Tensor
    positions: Tensor
    labels: Tensor
    blocks: Tensor
    mask: Tensor
    answers: list[tuple[int, int, str]]
    targets: dict[tuple[str, int], tuple[Tensor, Tensor]]


def pack(rows: list[list[Block]]) -> Batch:
    """Lay each row's document and questions side by side; rows are padded to the longest."""
    count, total = len(rows), max(sum(len(block.ids) for block in row) for row in rows)
    ids, positions = torch.full((count, total), ID[PAD]), torch.zeros(count, total, dtype=torch.long)
    labels, blocks = torch.full((count, total), IGNORE), torch.full((count, total), -1)
    sees = torch.zeros(count, total, dtype=torch.bool)
    answers, collected = [], {}
    for r, row in enumerate(rows):
        start, document = 0, len(row[0].ids)
        for number, block in enumerate(row):
            end = start + len(block.ids)
            offset = document if number and block.sees_document else 0
            ids[r, start:end] = torch.tensor(block.ids)
            positions[r, start:end] = torch.arange(offset, offset + len(block.ids))
            blocks[r, start:end], sees[r, start:end] = number, block.sees_document
            for at in block.labels:
                labels[r, start + at] = block.ids[at + 1]
            if block.labels:
                answers.append((r, start + block.labels[0], block.kind))
            for target in block.targets:
                columns = [-1 - c if c < 0 else start + c for c in target.columns]
                collected.setdefault((target.stage, target.head), [[] for _ in rows])[r].append((start + target.row, columns))
            start = end
    index = torch.arange(total)
    mask = (index[:, None] >= index[None, :]) & (blocks[:, :, None] >= 0) & (blocks[:, None, :] >= 0)
    mask &= ((blocks[:, None, :] == 0) & sees[:, :, None]) | (blocks[:, None, :] == blocks[:, :, None])
    mask |= torch.eye(total, dtype=torch.bool)
    targets = {}
    for key, made in collected.items():
        most = max(len(r) for r in made)
        at = torch.zeros(count, most, dtype=torch.long)
        columns = torch.full((count, most, MAX_COLUMNS), -1)
        for r, entries in enumerate(made):
            for j, (row_at, places) in enumerate(entries):
                at[r, j] = row_at
                columns[r, j, : len(places)] = torch.tensor(places)
        targets[key] = at, columns
    return Batch(ids, positions, labels, blocks, mask[:, None], answers, targets)


def make_batch(rng: random.Random, rows: int, facts: int, questions: int, fillers: int, mixed: bool, prompter: Prompter) -> Batch:
    """Documents of about `facts` facts with `questions` questions each; `mixed` adds the other kinds and the knowledge items."""
    people, packed = names("train"), []
    for _ in range(rows):
        plain = mixed and rng.random() < 0.2
        kinds = ["complete"] * 3 if plain else rng.choices(KINDS, (0.5, 0.2, 0.05, 0.2, 0.05) if mixed else (1, 0, 0, 0, 0), k=questions)
        document = write_document(
            rng,
            people,
            facts,
            rng.randint(0, fillers),
            repeats=rng.choice((0.0, 0.35)) if mixed else 0.0,
            doubtful=0.2 if "doubt" in kinds else 0.0,
        )
        if plain:
            block, places = document_block(rng, document, prompter.plain_prefix, [])
        else:
            block, places = document_block(rng, document, prompter.document_prefix, prompter.document_suffix)
        row = [block, *(question_block(rng, document, places, kind, prompter) for kind in kinds)]
        if mixed:
            row += [knowledge_block(rng, people, prompter) for _ in range(2)]
        packed.append(row)
    return pack(packed)


assert all(len(start) == 2 for start in STARTS)
