"""The Factbook converter: exact answers, the right field among distractors of its own split, lengths, determinism, refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from acct.data.factbook import LICENCE, SPLITS, FactbookOptions, convert, main, read_entities, token_count
from acct.data.factbook_rules import MAX_WORDS, RULES
from acct.data.prompts import encode, encode_query
from acct.data.source import FolderSource, load_examples
from acct.data.tasks.registry import get_task
from acct.errors import ConfigError, DataError

from .tiny_tokenizers import tokenizer

REAL = "ACCT_REAL_DATA"
SMALL = FactbookOptions(min_tokens=40, max_tokens=70, questions=6)


def entity(number: int) -> dict:
    """An invented entity with the fields, and the spelling, of the Factbook."""
    name = f"Land{number}"
    fields = {
        "Introduction/Background": f"{name} " + "was settled long ago by people whose names nobody wrote down " * 8,
        "Geography/Area/total": f"{1000 + number} sq km",
        "Geography/Coastline": f"{10 + number}.{number} km",
        "Geography/Elevation extremes/highest point": f"Mount {chr(65 + number % 26)}ora {100 + number} m",
        "Geography/Elevation extremes/lowest point": "Atlantic Ocean 0 m",
        "People and Society/Population": f"{number + 1},234,567 (July 2015 est.)",
        "Government/Capital/name": f"Town{number}; note - the seat is Port{number}",
        "Government/Independence": f"{number + 1} March 1957 (from the UK)",
        "Government/National holiday": f"Independence Day, {number + 1} March (1957)",
        "Government/Executive branch/chief of state": f"President Ada NAME{number} (since 24 July 2012); Vice President Ben OTHER",
        "Economy/Exports": f"++ ${number}.5 billion (2014 est.) ++ $1 billion (2013 est.)",
        "Economy/Exchange rates": f"coins (CN{number}) per US dollar - ++ 2.881 (2014 est.)",
        "Communications/Internet country code": f".{chr(97 + number % 26)}{chr(97 + number // 26)}",
        "Transportation/Airports": "NA",
    }
    return {"code": f"c{number}", "region": "sea", "name": name, "fields": [{"path": p, "text": t} for p, t in fields.items()]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for part in range(2):
        lines = [json.dumps(entity(number)) + "\n" for number in range(part, 40, 2)]
        (folder / f"part-{part}.jsonl").write_text("".join(lines))
    return folder


def rows(folder: Path, split: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def test_answers_by_hand() -> None:
    fields = {one["path"]: " ".join(one["text"].split()) for one in entity(3)["fields"]}
    found = {rule.path: rule.answer(fields[rule.path].replace("++ ", "")) for rule in RULES if rule.path in fields}
    assert found == {
        "Geography/Area/total": "1003", "Geography/Coastline": "13.3", "Geography/Elevation extremes/highest point": "Mount Dora",
        "Geography/Elevation extremes/lowest point": "Atlantic Ocean", "People and Society/Population": "4,234,567",
        "Government/Capital/name": "Town3", "Government/Independence": "4 March 1957", "Government/National holiday": "4 March",
        "Government/Executive branch/chief of state": "President Ada NAME3", "Economy/Exports": "$3.5 billion",
        "Economy/Exchange rates": "coins", "Communications/Internet country code": ".da", "Transportation/Airports": None,
    }  # fmt: skip
    highest = next(rule for rule in RULES if rule.path.endswith("highest point"))
    assert [highest.answer(text) for text in ("Mount Afadjato 885 m", "unnamed location 3.5 m", "Town Hill 76 m; note")] == [
        "Mount Afadjato", "unnamed location", "Town Hill",
    ]  # fmt: skip
    assert highest.answer("one two three four five six seven eight nine 12 m") is None


def test_the_right_field_is_among_distractors_of_its_own_split(source: Path, tmp_path: Path) -> None:
    counts = convert(source, tmp_path / "out", SMALL)
    entities = {one.name: one for one in read_entities(source)}
    owners = {split: {one.code for one in entities.values() if one.split == split} for split in SPLITS}
    assert all(owners.values()) and sum(map(len, owners.values())) == 40
    places, shares = set(), []
    for split in SPLITS:
        made = rows(tmp_path / "out", split)
        assert len(made) == counts[split] > 0 and len({row["id"] for row in made}) == len(made)
        for row in made:
            code, path = row["id"].split(":", 1)
            own, results = next(one for one in entities.values() if one.code == code), row["search_results"]
            right = own.snippet(path)
            assert code in owners[split] and results["snippets"].count(right) == 1 and row["answer"] in right
            assert own.name in row["question"] and len(row["answer"].split()) <= MAX_WORDS
            assert len(set(results["snippets"])) == len(results["snippets"]) == len(results["titles"])
            for text, title in zip(results["snippets"], results["titles"]):
                assert entities[title].code in owners[split] and text.startswith(f"{title}, ")  # nothing of another split
                assert len(text.split()) <= SMALL.snippet_words
            places.add(results["snippets"].index(right))
            shares.append(results["titles"].count(own.name) / len(results["titles"]))
            tokens = sum(round(SMALL.tokens_per_word * len(text.split())) for text in results["snippets"])
            assert SMALL.min_tokens <= tokens <= SMALL.max_tokens
    assert len(places) > 3 and 0.3 < sum(shares) / len(shares) < 0.8  # random order; own and other entities


def test_equal_inputs_give_equal_bytes_and_another_seed_other_contexts(source: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        convert(source, tmp_path / name, FactbookOptions(seed=seed, min_tokens=40, max_tokens=70, questions=6))
    bytes_of = {name: [(tmp_path / name / f"{split}.jsonl").read_bytes() for split in SPLITS] for name in ("one", "two", "other")}
    assert bytes_of["one"] == bytes_of["two"] != bytes_of["other"]
    card = (tmp_path / "one" / "README.md").read_text()
    assert LICENCE in card and "seed=0" in card and (tmp_path / "two" / "README.md").read_text() == card


def test_training_rows_name_what_else_their_snippets_answer(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", SMALL)
    assert not any("further" in row for split in ("validation", "test") for row in rows(tmp_path / "out", split))
    train = rows(tmp_path / "out", "train")
    owners = {one.name: one for one in read_entities(source)}
    asked = {rule.question.format(name=name): (one, rule) for name, one in owners.items() for rule in RULES}
    assert any(row["further"] for row in train)
    for row in train:
        found = {(one["question"], one["answer"]) for one in row["further"]}
        snippets = set(row["search_results"]["snippets"])
        expected = {
            (question, rule.answer(one.fields[rule.path]))
            for question, (one, rule) in asked.items()
            if rule.path in one.fields and one.snippet(rule.path) in snippets and rule.answer(one.fields[rule.path])
        }
        assert found == expected - {(row["question"], row["answer"])} and len(found) == len(row["further"]), row["id"]


def test_the_task_reads_further_questions_and_equal_prompts_stay_equal(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", SMALL)
    row = next(row for row in rows(tmp_path / "out", "train") if row["further"])
    task, plain = get_task("factbook_qa"), {name: value for name, value in row.items() if name != "further"}
    one, other = task.from_row(row, 0), task.from_row(plain, 0)
    assert one.further == tuple((f"Question: {more['question']}", more["answer"]) for more in row["further"]) and other.further == ()
    assert one.content_hash() == other.content_hash()
    words = tokenizer()
    encoded = encode(one, words)
    assert encoded.prompt_hash == encode(other, words).prompt_hash and encode(other, words).further == ()
    for (query, answer), more in zip(encoded.further, row["further"], strict=True):
        assert query == encode_query(f"Question: {more['question']}", words) and words.decode(answer).strip() == more["answer"]
    with pytest.raises(DataError, match=r"factbook_qa \(further question 0\), row 3, field 'answer'"):
        task.from_row({**row, "further": [{"question": "What?"}]}, 3)


def test_a_tokenizer_counts_and_the_task_reads_what_was_written(source: Path, tmp_path: Path) -> None:
    tiny = tokenizer()
    convert(source, tmp_path / "factbook_qa", FactbookOptions(min_tokens=300, max_tokens=400, questions=2), tiny, "tiny")
    examples = load_examples(FolderSource(tmp_path), get_task("factbook_qa"), "train")
    assert len(examples) == len(rows(tmp_path / "factbook_qa", "train"))
    count = token_count(tiny)
    assert all(290 <= count(one.context) <= 400 for one in examples)
    assert all(one.answers[0] in one.context for one in examples)


def test_the_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out"
    assert main([str(source), str(out), "--min-tokens", "40", "--max-tokens", "70", "--questions", "3"]) == 0
    assert f"{len(rows(out, 'train'))} train" in capsys.readouterr().out
    assert main([str(tmp_path / "nowhere"), str(out)]) == 2
    assert "holds no *.jsonl file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"code": ""}, "'code' must be a text"),
        ({"fields": {"a": "b"}}, "'fields' must be a list of objects"),
        ({"fields": [{"path": "a"}]}, "'fields' must be a list of objects"),
        ({"code": "c1"}, "'c1' is there twice"),
    ),
)
def test_a_wrong_row_is_named(change: dict, message: str, source: Path, tmp_path: Path) -> None:
    (source / "part-9.jsonl").write_text(json.dumps({**entity(90), **change}) + "\n")
    with pytest.raises(DataError, match=rf"part-9\.jsonl, row 0: .*{message}"):
        convert(source, tmp_path / "out", SMALL)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_filled_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected 90000 to 90001"):
        convert(source, tmp_path / "out", FactbookOptions(min_tokens=90_000, max_tokens=90_001, questions=1))
    with pytest.raises(ConfigError, match="min_tokens <= max_tokens"):
        FactbookOptions(min_tokens=5, max_tokens=4)
    with pytest.raises(ConfigError, match="sum to at most 1"):
        FactbookOptions(same_entity=0.8, same_field=0.3)


@pytest.mark.real
def test_the_real_factbook(tmp_path: Path) -> None:
    place = os.environ.get(REAL)
    folder = Path(place or ".") / "corpora" / "factbook"
    if not place or not folder.is_dir():
        pytest.skip(f"{REAL} names no folder with corpora/factbook/")
    counts = convert(folder, tmp_path / "factbook_qa")
    assert counts["train"] > 4000 and counts["validation"] > 300 and counts["test"] > 600
    answered: dict[str, set[str]] = {}
    for split in SPLITS:
        examples = load_examples(FolderSource(tmp_path), get_task("factbook_qa"), split)
        assert all(one.answers[0] in one.context for one in examples)
        for one in examples:
            answered.setdefault(one.id.split(":", 1)[1], set()).add(one.answers[0])
    assert len(answered) == len(RULES)  # every rule finds fields
    assert all(len(answers) > 8 for answers in answered.values())  # no question has one answer for all
