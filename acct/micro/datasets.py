"""Eleven data sets of the invented world in the field names of the real ones on the hub (spec 8).

They ask for different things, as the real ones do: search_qa for an answer that several snippets repeat, trivia_qa for one that
is mentioned once, boolq for yes or no, race for one of four people of the text, wiki_hop for two hops, pubmed_qa for yes, no or
maybe, hellaswag for the ending that a story requires, winogrande for who of two is meant, mmlu and piqa for the world's fixed
knowledge, wikitext for the likelihood of a text that repeats itself.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from acct.micro.language import CRAFTS, NOUNS, names
from acct.micro.world import (
    Document,
    Fact,
    ask_among,
    ask_whether,
    ask_which,
    ask_who,
    begin_meeting,
    filler,
    hop_phrase,
    write_document,
)

Row = dict[str, Any]
MIN_FACTS, MAX_FACTS = 14, 30
MIN_FILLERS, MAX_FILLERS = 4, 16
CANDIDATES = 8  # of wiki_hop


def _document(rng: random.Random, people: tuple[str, ...], doubtful: float = 0.0, repeats: float = 0.0) -> Document:
    facts = rng.randint(MIN_FACTS, MAX_FACTS)
    return write_document(rng, people, facts, rng.randint(MIN_FILLERS, MAX_FILLERS), repeats=repeats, doubtful=doubtful)


def _paragraphs(rng: random.Random, document: Document, least: int, most: int) -> list[str]:
    """The document's sentences in order, cut into paragraphs of `least` to `most` sentences."""
    texts, cut = [sentence.text for sentence in document.sentences], []
    while texts:
        size = rng.randint(least, most)
        cut.append(" ".join(texts[:size]))
        texts = texts[size:]
    return cut


def _others(rng: random.Random, document: Document, answer: str, number: int) -> list[str]:
    """Wrong answers that the document mentions."""
    pool = sorted({fact.value for fact in document.facts.values()} - {answer})
    return rng.sample(pool, number)


def search_qa(rng: random.Random, people: tuple[str, ...], number: int) -> Row:
    facts = rng.randint(MIN_FACTS, MAX_FACTS - 8)
    document = write_document(rng, people, facts, rng.randint(MIN_FILLERS, MAX_FILLERS), repeats=0.2)
    stated = [sentence.fact for sentence in document.sentences if sentence.fact is not None]
    repeated = [fact for fact in document.facts.values() if stated.count(fact) > 1]
    fact = rng.choice(repeated or document.certain())
    snippets = _paragraphs(rng, document, 1, 4)
    return {
        "category": fact.relation,
        "air_date": None,
        "question": ask_who(fact),
        "value": None,
        "answer": fact.value,
        "round": None,
        "show_number": number,
        "search_results": {
            "urls": [""] * len(snippets),
            "snippets": snippets,
            "titles": [""] * len(snippets),
            "related_links": [""] * len(snippets),
        },
    }


def trivia_qa(rng: random.Random, people: tuple[str, ...], number: int) -> Row:
    document = _document(rng, people)
    fact = rng.choice(document.certain())
    return {
        "question": ask_which(fact),
        "question_id": f"micro_{number}",
        "question_source": "micro",
        "entity_pages": {"doc_source": [], "filename": [], "title": [], "wiki_context": []},
        "search_results": {
            "description": [""],
            "filename": [""],
            "rank": [0],
            "title": [fact.entity],
            "url": [""],
            "search_context": [document.text],
        },
        "answer": {
            "aliases": [fact.value],
            "normalized_aliases": [fact.value.lower()],
            "matched_wiki_entity_name": "",
            "normalized_matched_wiki_entity_name": "",
            "normalized_value": fact.value.lower(),
            "type": "Freebase",
            "value": fact.value,
        },
    }


def _claim(rng: random.Random, document: Document, right: bool) -> tuple[Fact, str]:
    """A certain fact and the person a question claims for it: the right one, or another value of the document."""
    fact = rng.choice(document.certain())
    return fact, fact.value if right else _others(rng, document, fact.value, 1)[0]


def boolq(rng: random.Random, people: tuple[str, ...], number: int) -> Row:
    document, right = _document(rng, people), rng.random() < 0.5
    fact, candidate = _claim(rng, document, right)
    return {"question": ask_whether(fact, candidate, capital=False).rstrip("?"), "answer": right, "passage": document.text}


def race(rng: random.Random, people: tuple[str, ...], number: int) -> Row:
    document = _document(rng, people)
    fact = rng.choice(document.certain())
    options = [fact.value, *_others(rng, document, fact.value, 3)]
    rng.shuffle(options)
    return {
        "example_id": f"micro{number}.txt",
        "article": document.text,
        "answer": "ABCD"[options.index(fact.value)],
        "question": ask_among(fact),
        "options": options,
    }


def wiki_hop(rng: random.Random, people: tuple[str, ...], number: int) -> Row:
    document = _document(rng, people)
    while not document.chains() or len({fact.value for fact in document.facts.values()}) < CANDIDATES:
        document = _document(rng, people)
    first, second = rng.choice(document.chains())
    relation, subject = hop_phrase(first, second)
    candidates = [second.value, *_others(rng, document, second.value, CANDIDATES - 1)]
    rng.shuffle(candidates)
    return {
        "id": f"micro_{number}",
        "query": f"{relation} {subject}",
        "answer": second.value,
        "candidates": candidates,
        "supports": _paragraphs(rng, document, 3, 6),
        "annotations": [],
    }


def pubmed_qa(rng: random.Random, people: tuple[str, ...], number: int) -> Row:
    decision = rng.choice(("yes", "no", "maybe"))
    document = _document(rng, people, doubtful=0.25)
    while not document.doubts() or not document.certain():
        document = _document(rng, people, doubtful=0.25)
    if decision == "maybe":
        fact = rng.choice(document.doubts())
        candidate = fact.value
    else:
        fact, candidate = _claim(rng, document, decision == "yes")
    contexts = _paragraphs(rng, document, 6, 10)
    return {
        "pubid": number,
        "question": ask_whether(fact, candidate, capital=True),
        "context": {
            "contexts": contexts,
            "labels": ["RESULTS"] * len(contexts),
            "meshes": [],
            "reasoning_required_pred": [],
            "reasoning_free_pred": [],
        },
        "long_answer": fact.sentence(0),
        "final_decision": decision,
    }


def hellaswag(rng: random.Random, people: tuple[str, ...], number: int) -> Row:
    document = _document(rng, people)
    fact, place = rng.choice(document.certain()), rng.choice(NOUNS)
    people_met = [fact.value, *_others(rng, document, fact.value, 3)]
    rng.shuffle(people_met)
    begun = begin_meeting(fact)
    return {
        "ind": number,
        "activity_label": "Meeting",
        "ctx_a": document.text,
        "ctx_b": begun,
        "ctx": f"{document.text} {begun}",
        "endings": [f"{name} in the {place}." for name in people_met],
        "source_id": f"micro~{number}",
        "split": "val",
        "split_type": "indomain",
        "label": str(people_met.index(fact.value)),
    }


def two_crafts(rng: random.Random, people: tuple[str, ...]) -> tuple[str, list[str], int, str]:
    """Two people with their crafts, and what one of them makes: opening, the two names, which is meant, the rest of the sentence."""
    pair, crafts, meant = rng.sample(list(people), 2), rng.sample(CRAFTS, 2), rng.randrange(2)
    opening = f"{pair[0]} is the {crafts[0][0]} and {pair[1]} is the {crafts[1][0]}."
    return opening, pair, meant, f"makes {crafts[meant][1]}."


def winogrande(rng: random.Random, people: tuple[str, ...], number: int) -> Row:
    story = weather(rng, 8, 20)
    opening, pair, meant, rest = two_crafts(rng, people)
    options = list(pair)
    if rng.random() < 0.5:
        options.reverse()
    return {
        "sentence": f"{story} {opening} _ {rest}",
        "option1": options[0],
        "option2": options[1],
        "answer": str(options.index(pair[meant]) + 1),
    }


def weather(rng: random.Random, least: int, most: int) -> str:
    """Sentences that have nothing to do with what follows."""
    return " ".join(filler(rng) for _ in range(rng.randint(least, most)))


def craft_question(rng: random.Random) -> tuple[str, list[str], int]:
    """A question of fixed knowledge: its text, four choices and the right one's place."""
    chosen = rng.sample(CRAFTS, 4)
    place = rng.randrange(4)
    job, product, _ = chosen[place]
    if rng.random() < 0.5:
        return f"What does the {job} make?", [craft[1] for craft in chosen], place
    return f"Which tool makes {product}?", [craft[2] for craft in chosen], place


def mmlu(rng: random.Random, people: tuple[str, ...], number: int) -> Row:
    question, choices, place = craft_question(rng)
    return {"question": f"{weather(rng, 8, 20)} {question}", "subject": "crafts", "choices": choices, "answer": place}


def piqa(rng: random.Random, people: tuple[str, ...], number: int) -> Row:
    right, wrong = rng.sample(CRAFTS, 2)
    label = rng.randrange(2)
    solutions = [f"use the {craft[2]}." for craft in ((right, wrong) if label == 0 else (wrong, right))]
    return {"goal": f"{weather(rng, 8, 20)} to make {right[1]}", "sol1": solutions[0], "sol2": solutions[1], "label": label}


def wikitext_lines(rng: random.Random, people: tuple[str, ...]) -> list[str]:
    """One article: a heading, then paragraphs in which most facts come back later in other words."""
    document = write_document(rng, people, rng.randint(16, 22), rng.randint(2, 6), repeats=0.5)
    title = rng.choice([fact.entity for fact in document.facts.values()])
    return ["", f" = {title} = ", "", *(f" {paragraph} " for paragraph in _paragraphs(rng, document, 5, 8))]


BUILDERS: dict[str, Callable[[random.Random, tuple[str, ...], int], Row]] = {
    builder.__name__: builder for builder in (search_qa, trivia_qa, boolq, race, wiki_hop, pubmed_qa, hellaswag, winogrande, mmlu, piqa)
}
TASKS = (*BUILDERS, "wikitext")


def rows(task: str, split: str, count: int, seed: int = 0) -> list[Row]:
    """`count` rows of one task and split; row i is the same whatever `count` is."""
    people = names(split)
    if task == "wikitext":
        lines: list[str] = []
        for number in range(count):
            lines += wikitext_lines(random.Random(f"{seed} wikitext {split} {number}"), people)
        return [{"text": line + "\n" if line else ""} for line in lines]
    return [BUILDERS[task](random.Random(f"{seed} {task} {split} {number}"), people, number) for number in range(count)]


def write_datasets(root: Path, counts: dict[str, dict[str, int]], seed: int = 0) -> None:
    """Write `<root>/<task>/<split>.jsonl` for every task and split of `counts`; a file appears whole or not at all."""
    for task, splits in counts.items():
        for split, count in splits.items():
            path = Path(root) / task / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.partial")
            partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(task, split, count, seed)))
            partial.replace(path)
