"""A small invented world: people, who they know, documents about them, and questions about a document.

Who is whose teacher is invented anew for every document, so it can be known from the context only; what a smith makes is the
world's fixed knowledge. Sentences are plain English that a person can read. People of a document all come from one split.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from acct.micro.language import ADJECTIVES, ADVERBS, NOUNS, RELATIONS, VERBS

STATEMENTS = (
    "The {relation} of {entity} is {value}.",
    "{entity} has a {relation} named {value}.",
    "For {entity} the {relation} is {value}.",
)
DOUBT = "The {relation} of {entity} may be {value}."


@dataclass(frozen=True)
class Fact:
    """`value` is the `relation` of `entity`; a doubtful one is only said to be possible."""

    entity: str
    relation: str
    value: str
    doubtful: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.entity, self.relation

    def sentence(self, form: int) -> str:
        """One of the three statements, `form` counted around them; a doubtful fact has one form only."""
        pattern = DOUBT if self.doubtful else STATEMENTS[form % len(STATEMENTS)]
        return pattern.format(entity=self.entity, relation=self.relation, value=self.value)


@dataclass(frozen=True)
class Sentence:
    text: str
    fact: Fact | None = None


@dataclass(frozen=True)
class Document:
    """Sentences in reading order. `facts` maps (entity, relation) to its one fact."""

    sentences: tuple[Sentence, ...]
    facts: dict[tuple[str, str], Fact]

    @property
    def text(self) -> str:
        return " ".join(sentence.text for sentence in self.sentences)

    def chains(self) -> list[tuple[Fact, Fact]]:
        """Pairs of certain facts where the second is about the value of the first: (x, r1, y), (y, r2, z)."""
        known = [fact for fact in self.facts.values() if not fact.doubtful]
        return [
            (first, second)
            for first in known
            for relation in RELATIONS
            if (second := self.facts.get((first.value, relation))) is not None and not second.doubtful and second.key != first.key
        ]

    def certain(self) -> list[Fact]:
        return [fact for fact in self.facts.values() if not fact.doubtful]

    def doubts(self) -> list[Fact]:
        return [fact for fact in self.facts.values() if fact.doubtful]


def filler(rng: random.Random) -> str:
    """A sentence that tells nothing about anybody."""
    return f"The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} {rng.choice(VERBS)} {rng.choice(ADVERBS)}."


def write_document(
    rng: random.Random,
    people: Sequence[str],
    facts: int,
    fillers: int,
    repeats: float = 0.0,
    doubtful: float = 0.0,
) -> Document:
    """Invent `facts` facts about some of the people and state them in random order among `fillers` sentences of weather and roads.

    Args:
        repeats: chance that a fact is stated again elsewhere in another form (twice at most).
        doubtful: chance that a fact is stated as a doubt.
    """
    cast = rng.sample(list(people), min(len(people), max(4, facts // 2)))
    keys = rng.sample([(entity, relation) for entity in cast for relation in RELATIONS], facts)
    known: dict[tuple[str, str], Fact] = {}
    sentences: list[Sentence] = []
    for entity, relation in keys:
        value = entity
        while value == entity:
            value = rng.choice(cast) if rng.random() < 0.5 else rng.choice(people)
        fact = Fact(entity, relation, value, rng.random() < doubtful)
        known[fact.key] = fact
        form = rng.randrange(len(STATEMENTS))
        sentences.append(Sentence(fact.sentence(form), fact))
        while not fact.doubtful and rng.random() < repeats and form < 2 * len(STATEMENTS):
            form += rng.randint(1, 2)
            sentences.append(Sentence(fact.sentence(form), fact))
    sentences += [Sentence(filler(rng)) for _ in range(fillers)]
    rng.shuffle(sentences)
    return Document(tuple(sentences), known)


def ask_who(fact: Fact) -> str:
    return f"Who is the {fact.relation} of {fact.entity}?"


def ask_which(fact: Fact) -> str:
    return f"{fact.entity} has which {fact.relation}?"


def ask_among(fact: Fact) -> str:
    return f"Who of these is the {fact.relation} of {fact.entity}?"


def ask_whether(fact: Fact, candidate: str, capital: bool) -> str:
    return f"{'Is' if capital else 'is'} {candidate} the {fact.relation} of {fact.entity}?"


def hop_phrase(first: Fact, second: Fact) -> tuple[str, str]:
    """Relation and subject of a two-hop question in wiki_hop's form, e.g. ("teacher_of_the_friend_of", "Tami")."""
    return f"{second.relation}_of_the_{first.relation}_of", first.entity


def begin_meeting(fact: Fact) -> str:
    """The sentence of hellaswag that the value of a fact completes."""
    return f"{fact.entity} looks for the {fact.relation} and finds"
