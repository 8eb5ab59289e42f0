"""What `make micro-check` demands of a family, on records written by hand."""

from __future__ import annotations

from typing import Any

from acct.micro.build import CONTEXTUAL, GENERAL, better_tasks, render, shortfalls


def record(small: float, large: dict[str, float], without: float = 3.0) -> dict[str, Any]:
    tasks = {
        task: {"small": {"with": small, "without": without}, "large": {"with": large.get(task, 97.0), "without": without}}
        for task in (*CONTEXTUAL, *GENERAL)
    }
    one = {"keys": [0.9, 0.8], "values": [0.7, 0.6]}
    return {"family": "qwen3", "examples": 400, "fewer": 100, "tasks": tasks, "linearity": {"small_to_large": {"bridge": one}}}


def test_a_family_that_does_everything_has_no_shortfall() -> None:
    assert shortfalls(record(90.0, {})) == []
    assert better_tasks(record(90.0, {"race": 90.0, "boolq": 89.0})) == ["search_qa", "trivia_qa", "wiki_hop", "pubmed_qa"]


def test_the_large_model_must_be_better_on_more_than_half() -> None:
    (line,) = shortfalls(record(95.0, {"race": 95.0, "boolq": 94.0, "wiki_hop": 95.0}))
    assert line == "qwen3_large is better than the small model on 3 of 6 contextual tasks only"


def test_answers_without_the_context_and_weak_answers_are_named() -> None:
    found = shortfalls(record(65.0, {"search_qa": 80.0}, without=20.0))
    assert any("qwen3_small answers search_qa at 65.0 with the context; at least 70.0" in line for line in found)
    assert any("qwen3_large answers search_qa at 80.0 with the context; at least 90.0" in line for line in found)
    assert sum("without it; at most 15.0" in line for line in found) == 4


def test_the_table_says_how_many_examples_and_where_the_large_one_is_better() -> None:
    text = render([record(90.0, {"boolq": 80.0})])
    assert "| boolq | 90.0 (3.0) | 80.0 (3.0) |" in text
    assert "400 test examples of the first six tasks with the context, 100 of everything else" in text
    assert "5 of 6 contextual tasks (qwen3)" in text and "| qwen3 small_to_large | bridge | keys | 0.90 0.80 | 0.850 |" in text
