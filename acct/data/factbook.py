"""Questions on the World Factbook in SearchQA's schema, from its fields: python -m acct.data.factbook SOURCE OUT [options].

SOURCE holds files *.jsonl of one entity a line: code, region, name, fields[{path, text}]. A question asks for one field of one entity
(`acct.data.factbook_rules`); its snippets are that field among others of the same entity, the same field of other entities, and other
fields of other entities, in random order. Training rows name in `further` what else can be asked of their snippets. OUT gets train.jsonl,
validation.jsonl and test.jsonl in the fields that the task `factbook_qa` reads, and README.md with the licence line, the settings and the
hashes of what was read. Equal inputs give equal bytes.

Entities are split by the hash of their code, and the distractors of a question belong to its own split: nothing of an entity of the test
split is in the training split. Names of entities may still occur in texts of others (borders, partners in trade).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acct.data.factbook_rules import RULES, Rule
from acct.data.source import read_jsonl
from acct.errors import AcctError, ConfigError, DataError
from acct.training.files import sha256, write_text

LICENCE = "The World Factbook, 2015 state, is in the public domain; these questions are made from its fields."
SPLITS = ("train", "validation", "test")
Count = Callable[[str], int]


@dataclass(frozen=True)
class FactbookOptions:
    """What the questions look like.

    Attributes:
        seed: of snippets and their order. min_tokens, max_tokens: of a context, its length is drawn between them.
        questions: largest number for one entity. same_entity, same_field: shares of the distractors from other fields of the entity, and
            from the same field of other entities; the rest are other fields of other entities.
        snippet_words: longer fields are no distractors. tokens_per_word: where no tokenizer counts; 2.2 was measured on the real fields
            with Qwen2.5's tokenizer, which writes digits one by one.
    """

    seed: int = 0
    min_tokens: int = 250
    max_tokens: int = 600
    questions: int = 24
    same_entity: float = 0.5
    same_field: float = 0.25
    snippet_words: int = 60
    tokens_per_word: float = 2.2

    def __post_init__(self) -> None:
        if not 1 <= self.min_tokens <= self.max_tokens:
            raise ConfigError(f"a context needs 1 <= min_tokens <= max_tokens, got {self.min_tokens} and {self.max_tokens}.")
        if min(self.same_entity, self.same_field) < 0 or self.same_entity + self.same_field > 1:
            raise ConfigError(f"same_entity and same_field are shares that sum to at most 1, got {self.same_entity} and {self.same_field}.")
        if self.questions < 1 or self.snippet_words < 1 or self.tokens_per_word <= 0:
            raise ConfigError("questions, snippet_words and tokens_per_word must be above 0.")


@dataclass(frozen=True)
class Entity:
    """One entity: its code, its name, and the text of every field by its path."""

    code: str
    name: str
    fields: Mapping[str, str]

    @property
    def split(self) -> str:
        """Four of five to training; of the others one of three to validation and two to the test."""
        if _number(self.code, "md5") % 5:
            return "train"
        return "test" if _number(self.code, "sha256") % 3 else "validation"

    def snippet(self, path: str) -> str:
        """A field as a text of its own, which names entity and field."""
        return f"{self.name}, {path.replace('/', ', ')}: {self.fields[path]}"


def _number(text: str, algorithm: str) -> int:
    return int(hashlib.new(algorithm, text.encode()).hexdigest(), 16)


def read_entities(source: Path) -> list[Entity]:
    """All entities of a folder, in the order of their codes.

    Raises:
        DataError: no files, a row of another schema (file and row are named), or a code twice.
    """
    paths = sorted(source.glob("*.jsonl"))
    if not paths:
        raise DataError(f"{source} holds no *.jsonl file. Give the folder with the Factbook's fields, one entity a line.")
    found: dict[str, Entity] = {}
    for path in paths:
        for number, row in enumerate(read_jsonl(path)):
            entity = _entity(row, f"{path}, row {number}")
            if entity.code in found:
                raise DataError(f"{path}, row {number}: the code {entity.code!r} is there twice. Remove one of the two entities.")
            found[entity.code] = entity
    return [found[code] for code in sorted(found)]


def _entity(row: Mapping[str, Any], where: str) -> Entity:
    for name in ("code", "name"):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise DataError(f"{where}: {name!r} must be a text, got {row.get(name)!r}.")
    fields = row.get("fields")
    if not isinstance(fields, list) or not all(
        isinstance(one, dict) and isinstance(one.get("path"), str) and isinstance(one.get("text"), str) for one in fields
    ):
        raise DataError(f"{where}: 'fields' must be a list of objects with the texts 'path' and 'text'.")
    return Entity(row["code"], row["name"].strip(), {one["path"]: _clean(one["text"]) for one in fields if _clean(one["text"])})


def _clean(text: str) -> str:
    """One line; "++", which separates values in the files, becomes a semicolon."""
    return re.sub(r"\s*;(?:\s*;)+", ";", re.sub(r"\s*\+\+\s*", "; ", " ".join(text.split()))).strip(" ;")


def questions(entities: Sequence[Entity], options: FactbookOptions, count: Count, further: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of one split in a seeded order, in SearchQA's fields with an id of their own.

    Args:
        entities: of this split only. count: tokens of a text. further: rows get `further`, the other questions that their snippets answer.
    Raises:
        DataError: the entities' fields cannot fill a context of `min_tokens`.
    """
    asked = [(entity, rule) for entity in entities for rule in _chosen(entity, options)]
    random.Random(f"{options.seed} order").shuffle(asked)
    lengths: dict[str, int] = {}

    def tokens(snippet: str) -> int:
        if snippet not in lengths:
            lengths[snippet] = count(snippet + "\n")
        return lengths[snippet]

    for entity, rule in asked:
        answer = rule.answer(entity.fields[rule.path])
        assert answer is not None
        snippets = _snippets(entity, rule, entities, options, tokens)
        row: dict[str, Any] = {
            "id": f"{entity.code}:{rule.path}",
            "category": rule.path.split("/")[0],
            "question": rule.question.format(name=entity.name),
            "answer": answer,
            "search_results": {"snippets": [one.snippet(path) for one, path in snippets], "titles": [one.name for one, _ in snippets]},
        }
        yield row | {"further": _further(snippets, (entity.code, rule.path))} if further else row


def _further(snippets: Sequence[tuple[Entity, str]], asked: tuple[str, str]) -> list[dict[str, str]]:
    """What the rules ask of these snippets, in their order, beside the code and path that is asked already."""
    found = []
    for entity, path in snippets:
        for rule in (rule for rule in RULES if rule.path == path and (entity.code, path) != asked):
            if answer := rule.answer(entity.fields[path]):
                found.append({"question": rule.question.format(name=entity.name), "answer": answer})
    return found


def _chosen(entity: Entity, options: FactbookOptions) -> list[Rule]:
    """The rules that are asked of an entity."""
    fitting = [rule for rule in RULES if rule.path in entity.fields and rule.answer(entity.fields[rule.path])]
    random.Random(f"{options.seed} {entity.code}").shuffle(fitting)
    return fitting[: options.questions]


def _snippets(entity: Entity, rule: Rule, entities: Sequence[Entity], options: FactbookOptions, tokens: Count) -> list[tuple[Entity, str]]:
    """The right field among distractors, each an entity and a path, in random order."""
    draw = random.Random(f"{options.seed} {entity.code} {rule.path}")
    others = [other for other in entities if other.code != entity.code]
    wanted = draw.randint(options.min_tokens, options.max_tokens)
    found = [(entity, rule.path)]
    total, used = tokens(entity.snippet(rule.path)), {(entity.code, rule.path)}
    for _ in range(40 * options.max_tokens):  # far more draws than a context has snippets
        if total >= wanted:
            break
        pick = draw.random()
        owner = entity if pick < options.same_entity or not others else draw.choice(others)
        same = options.same_entity <= pick < options.same_entity + options.same_field
        path = rule.path if same else draw.choice(list(owner.fields))
        if (owner.code, path) in used or path not in owner.fields or len(owner.fields[path].split()) > options.snippet_words:
            continue
        text = owner.snippet(path)
        if total + tokens(text) <= options.max_tokens:
            used.add((owner.code, path))
            found.append((owner, path))
            total += tokens(text)
    if not options.min_tokens <= total <= options.max_tokens:
        raise DataError(
            f"{entity.code}, {rule.path}: the context has {total} tokens, expected {options.min_tokens} to {options.max_tokens}. "
            "Give more entities, or lower min_tokens."
        )
    draw.shuffle(found)
    return found


def word_count(factor: float) -> Count:
    """Tokens of a text, estimated from its words."""
    return lambda text: round(factor * len(text.split()))


def token_count(tokenizer: Any) -> Count:
    """Tokens of a text by a tokenizer."""
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def convert(source: Path, out: Path, options: FactbookOptions | None = None, tokenizer: Any = None, name: str = "") -> dict[str, int]:
    """Write all splits; returns the number of questions of each.

    Args:
        tokenizer: counts tokens; None estimates them from words. name: of the tokenizer, for the README.
    Raises:
        DataError: see `read_entities` and `questions`; a split without an entity.
    """
    options = options or FactbookOptions()
    entities = read_entities(source)
    count = token_count(tokenizer) if tokenizer is not None else word_count(options.tokens_per_word)
    texts, counts, lines = {}, {}, []
    for split in SPLITS:
        own = [entity for entity in entities if entity.split == split]
        rows = list(questions(own, options, count, further=split == "train"))
        if not rows:
            raise DataError(f"{source}: none of {len(entities)} entities gives a question of the {split} split. Give more entities.")
        texts[split] = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        counts[split] = len(rows)
        lines.append(f"- `{split}.jsonl`: {len(rows)} questions on {len(own)} entities, sha256 {sha256(texts[split].encode())}")
    settings = ", ".join(f"{key}={value}" for key, value in asdict(options).items())
    read = [f"- `{path.name}`: sha256 {sha256(path.read_bytes())}" for path in sorted(source.glob("*.jsonl"))]
    for split, text in texts.items():
        write_text(out / f"{split}.jsonl", text)
    counted = f"by the tokenizer {name or 'given'}" if tokenizer is not None else "from words"
    body = ["# Factbook-QA", "", LICENCE, "", f"Settings: {settings}; tokens counted {counted}.", "", *lines, "", "Made from", *read]
    write_text(out / "README.md", "\n".join(body) + "\n")
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    defaults = FactbookOptions()
    parser = argparse.ArgumentParser(prog="python -m acct.data.factbook", description=__doc__.split("\n\n")[0])
    parser.add_argument("source", type=Path, help="folder with the Factbook's fields, *.jsonl")
    parser.add_argument("out", type=Path, help="folder for train.jsonl, validation.jsonl, test.jsonl and README.md")
    parser.add_argument("--tokenizer", help="model folder or hub id whose tokenizer counts tokens; without it they are estimated")
    for field, value in asdict(defaults).items():
        parser.add_argument(f"--{field.replace('_', '-')}", type=type(value), default=value, help=f"default {value}")
    given = vars(parser.parse_args(arguments))
    source, out, name = given.pop("source"), given.pop("out"), given.pop("tokenizer")
    try:
        tokenizer = None
        if name:
            from acct.models.pair import load_tokenizer

            tokenizer = load_tokenizer(name)
        counts = convert(source, out, FactbookOptions(**given), tokenizer, name or "")
    except AcctError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(f"{out}: " + ", ".join(f"{count} {split}" for split, count in counts.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
