"""Rows of the eleven data sets: they answer their own questions, come back the same, and load through the project's tasks."""

from __future__ import annotations

import json
import random

import pytest

from acct.data.prompts import encode
from acct.data.tasks.registry import get_task
from acct.micro.datasets import BUILDERS, TASKS, rows, write_datasets
from acct.micro.language import CRAFTS, SPLITS, UNKNOWN, build_tokenizer, names
from acct.micro.world import STATEMENTS, write_document


@pytest.mark.parametrize("task", TASKS)
def test_rows_do_not_depend_on_how_many_are_asked_for(task):
    few, many = rows(task, "test", 3), rows(task, "test", 5)
    assert many[: len(few)] == few and rows(task, "validation", 3) != few


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("task", TASKS)
def test_every_row_becomes_a_prompt_without_unknown_words(task, chat):
    tokenizer = build_tokenizer(chat)
    examples = get_task(task).examples(rows(task, "test", 8), tokenizer)
    assert examples
    for example in examples:
        made = encode(example, tokenizer)
        pieces = tokenizer.convert_ids_to_tokens(list(made.context_ids + made.query_ids))
        assert UNKNOWN not in pieces
        assert 50 < len(made.context_ids) < 600


@pytest.mark.parametrize("split", SPLITS)
def test_people_of_a_row_come_from_its_split(split):
    others = {name for other in SPLITS if other != split for name in names(other)}
    text = json.dumps(rows("trivia_qa", split, 20))
    assert not any(name in text for name in others)


def test_the_answer_of_search_qa_is_repeated_and_that_of_trivia_qa_is_not():
    def stated(context: str, question: str, answer: str) -> int:
        relation, entity = next(
            (r, e) for r in (["teacher", "friend", "brother", "sister", "rival", "doctor", "guest", "captain", "cousin", "master"])
            for e in names("test") if f"{r} of {e}?" in question or f"{e} has which {r}?" in question
        )  # fmt: skip
        return sum(context.count(form.format(relation=relation, entity=entity, value=answer)) for form in STATEMENTS)

    searched, trivia = rows("search_qa", "test", 30), rows("trivia_qa", "test", 30)
    counts = [stated(" ".join(r["search_results"]["snippets"]), r["question"], r["answer"]) for r in searched]
    assert min(counts) >= 1 and sum(c > 1 for c in counts) > 20
    assert {stated(r["search_results"]["search_context"][0], r["question"], r["answer"]["value"]) for r in trivia} == {1}


def test_wiki_hop_has_eight_different_candidates_also_where_a_document_names_few_people():
    made = rows("wiki_hop", "test", 120)  # row 70 needs a second draw
    assert all(len(set(row["candidates"])) == 8 and row["answer"] in row["candidates"] for row in made)


def test_two_hops_are_both_in_the_supports():
    for row in rows("wiki_hop", "test", 20):
        relation, subject = row["query"].split(" ")
        second, first = relation.removesuffix("_of").split("_of_the_")
        text = " ".join(row["supports"])
        middle = [n for n in names("test") if any(f.format(relation=first, entity=subject, value=n) in text for f in STATEMENTS)]
        assert len(middle) == 1
        assert any(f.format(relation=second, entity=middle[0], value=row["answer"]) in text for f in STATEMENTS)


def test_labels_are_balanced_and_knowledge_is_right():
    assert 20 < sum(row["answer"] for row in rows("boolq", "test", 80)) < 60
    decisions = [row["final_decision"] for row in rows("pubmed_qa", "test", 90)]
    assert min(decisions.count(word) for word in ("yes", "no", "maybe")) > 10
    makes = {job: (product, tool) for job, product, tool in CRAFTS}
    for row in rows("mmlu", "test", 20):
        asked = [job for job in makes if f"the {job} make" in row["question"]]
        if asked:
            assert row["choices"][row["answer"]] == makes[asked[0]][0]


def test_a_document_states_every_fact_and_no_person_is_his_own_relation():
    document = write_document(random.Random(0), names("train"), 20, 5, repeats=0.5, doubtful=0.3)
    told = {sentence.fact.key for sentence in document.sentences if sentence.fact}
    assert told == set(document.facts) and all(fact.entity != fact.value for fact in document.facts.values())
    assert len(document.certain()) + len(document.doubts()) == 20


def test_files_appear_whole(tmp_path):
    write_datasets(tmp_path, {task: {"test": 2} for task in BUILDERS})
    for task in BUILDERS:
        lines = (tmp_path / task / "test.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == rows(task, "test", 2)
    assert not list(tmp_path.rglob("*.partial"))
