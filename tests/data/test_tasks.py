"""Each task against hand-written rows of its hub schema: what is read, asked and scored, and what a wrong row says."""

from __future__ import annotations

import copy

import pytest

from acct.data.examples import Example
from acct.data.tasks.base import as_question
from acct.data.tasks.registry import TASKS, get_task
from acct.data.tasks.trivia_qa import TriviaQA
from acct.data.tasks.wikitext import WikiText
from acct.data.tokens import token_ends
from acct.errors import ConfigError, DataError, UnknownName

from .hub_rows import ROWS
from .tiny_tokenizers import tokenizer


def example(task: str, index: int = 0) -> Example:
    return get_task(task).from_row(ROWS[task][index], index)


def test_the_table_of_the_specification():
    assert list(TASKS) == [
        "search_qa", "trivia_qa", "boolq", "race", "wiki_hop", "pubmed_qa", "hellaswag", "winogrande", "mmlu", "piqa", "wikitext",
    ]  # fmt: skip
    assert sum(task.default_examples for task in TASKS.values()) == 10_000
    assert [name for name, task in TASKS.items() if task.metric == "f1"] == ["search_qa", "trivia_qa"]
    assert [name for name, task in TASKS.items() if task.contextual] == list(TASKS)[:6]


@pytest.mark.parametrize("name", TASKS)
def test_every_row_gives_an_example_that_agrees_with_its_task(name):
    task = get_task(name, **({"window_tokens": 6, "context_tokens": 4} if name == "wikitext" else {}))
    examples = task.examples(ROWS[name])
    assert examples and len({e.id for e in examples}) == len(examples)
    for made in examples:
        assert (made.task, made.kind, made.contextual) == (name, task.kind, task.contextual)
        assert made.context.strip() and made.id.startswith(name + "/")
        if made.kind == "choice":
            assert made.answers == (made.candidates[made.gold],)


def test_search_qa_joins_the_snippets_that_exist():
    made = example("search_qa")
    assert made.context == "Orlen lies on the Tavin.\nThe Tavin is long."
    assert made.query == "Question: This river runs through the town of Orlen?"
    assert made.answers == ("the Tavin",) and made.candidates == () and made.gold is None
    assert made.id == "search_qa/00000"


def test_trivia_qa_takes_aliases_once_and_the_passages_that_the_field_names():
    made = example("trivia_qa")
    assert made.answers == ("Orlen", "Orlen City", "City of Orlen")
    assert made.context == "She founded Orlen." and made.query == "Question: Which city did Mira Sol found?"
    assert example("trivia_qa", 1).context == "Page one.\nPage two."
    row = ROWS["trivia_qa"][0]
    assert TriviaQA(passages="both").from_row(row, 0).context == "She founded Orlen.\nMira Sol founded a city."
    assert TriviaQA(passages="entity").from_row(row, 0).context == "Mira Sol founded a city."
    with pytest.raises(DataError, match=r"search_context.*passages='search'"):
        TriviaQA(passages="search").from_row(ROWS["trivia_qa"][1], 1)


def test_boolq():
    assert [example("boolq", i).gold for i in (0, 1)] == [0, 1]
    assert example("boolq").candidates == ("yes", "no") and example("boolq").query == "Question: is the tavin a river?"


def test_race_scores_the_options_without_showing_them_and_leaves_a_cloze_sentence_alone():
    made = example("race")
    assert made.query == "Question: Tom went to Orlen _ ." and made.answers == ("by boat",) and made.gold == 2
    assert "by train" not in made.context + made.query
    assert example("race", 1).query == "Question: Where did Tom go?"


def test_wiki_hop_words_the_relation():
    made = example("wiki_hop")
    assert made.query == "Question: country of origin mira sol?" and made.gold == 1 and made.id == "wiki_hop/WH_dev_0"
    assert made.context == "Mira Sol was born in Orlen.\nOrlen lies in Tavinia."


def test_pubmed_qa():
    made = example("pubmed_qa")
    assert made.id == "pubmed_qa/21645374" and made.candidates == ("yes", "no", "maybe") and made.answers == ("maybe",)
    assert made.context == "Leaves move.\nWe watched them."


def test_hellaswag_drops_the_markup_of_wikihow():
    made = example("hellaswag", 1)
    assert made.context == "How to row. Sit down. Take the oars." and made.candidates[0] == "Pull. Rest."
    assert example("hellaswag").gold == 1 and example("hellaswag").query == ""


def test_winogrande_scores_only_what_follows_the_blank():
    made = example("winogrande")
    assert made.context == "The cup did not fit the box because the" and made.candidates == ("cup", "box")
    assert made.scored_suffix == " was too big." and made.gold == 0
    assert example("winogrande", 1).gold == 1


def test_mmlu_and_piqa():
    made = example("mmlu")
    assert made.context == "Question: What is 2 + 2?\nA. 3\nB. 4\nC. 5\nD. 6" and made.query == "Answer:"
    assert made.candidates == ("A", "B", "C", "D") and made.gold == 1
    made = example("piqa")
    assert made.context == "Question: Open a jar" and made.query == "Answer:" and made.candidates == ("Turn the lid.", "Turn the floor.")


def test_wikitext_windows_by_words():
    task = WikiText(window_tokens=6, context_tokens=4)
    assert task.documents(ROWS["wikitext"])[1] == "= Tavin =\nThe Tavin is a river ."
    windows = task.examples(ROWS["wikitext"])
    assert windows[0].context == "= Orlen =\nOrlen" and windows[0].candidates == (" is a",)
    assert all(len((w.context + w.candidates[0]).split()) == 6 for w in windows)
    assert windows[-1].context == "= Tavin =\nThe" and len(windows) == 6  # 30 and 9 words: 5 + 1 windows
    assert len(WikiText(6, 4, separate_articles=False).examples(ROWS["wikitext"])) == 6  # 39 words
    assert len(WikiText(13, 4, separate_articles=False).examples(ROWS["wikitext"])) == 3  # across the articles
    assert len(WikiText(13, 4).examples(ROWS["wikitext"])) == 2


def test_wikitext_windows_by_tokens_cover_the_document_without_overlap():
    tiny = tokenizer()
    rows = ROWS["wikitext"]
    windows = WikiText(8, 5, separate_articles=False).examples(rows, tiny)
    text = WikiText(8, 5, separate_articles=False).documents(rows)[0]
    pieces = "".join(w.context + w.candidates[0] for w in windows)
    assert text.startswith(pieces) and len(token_ends(text[len(pieces) :], tiny)) < 8
    assert {len(token_ends(w.context, tiny)) for w in windows} == {5}
    assert {len(token_ends(w.candidates[0], tiny)) for w in windows} == {3}


def test_wikitext_refuses_windows_with_nothing_to_score():
    with pytest.raises(ConfigError, match="context_tokens"):
        WikiText(window_tokens=4, context_tokens=4)
    with pytest.raises(DataError, match=r"wikitext, row 3.*two words"):
        WikiText().from_row({"text": "one"}, 3)
    made = WikiText(4, 3).from_row({"text": "a b c d e f g h"}, 3)
    assert (made.context, made.candidates) == ("a b c d e f", (" g h",))


WRONG = [
    ("search_qa", "question", 3),
    ("search_qa", "search_results", {"snippets": []}),
    ("search_qa", "search_results.snippets", "text"),
    ("search_qa", "answer", ""),
    ("trivia_qa", "answer.value", None),
    ("trivia_qa", "answer.aliases", "Orlen"),
    ("boolq", "answer", "yes"),
    ("boolq", "passage", "  "),
    ("race", "answer", "E"),
    ("race", "options", ["a", "b"]),
    ("wiki_hop", "answer", "nowhere"),
    ("wiki_hop", "query", "country"),
    ("wiki_hop", "candidates", [1, 2]),
    ("pubmed_qa", "final_decision", "unsure"),
    ("pubmed_qa", "context.contexts", []),
    ("hellaswag", "label", ""),
    ("hellaswag", "label", "4"),
    ("hellaswag", "endings", ["a", "b", "c"]),
    ("winogrande", "sentence", "no blank"),
    ("winogrande", "sentence", "_ was tired."),
    ("winogrande", "answer", "3"),
    ("mmlu", "answer", True),
    ("mmlu", "choices", None),
    ("piqa", "label", -1),
    ("wikitext", "text", 5),
]


@pytest.mark.parametrize(("name", "path", "value"), WRONG)
def test_a_wrong_field_names_the_row_and_the_field(name, path, value):
    row = copy.deepcopy(ROWS[name][0])
    *parents, last = path.split(".")
    place = row
    for part in parents:
        place = place[part]
    place[last] = value
    with pytest.raises(DataError, match=rf"{name}, row 41, field .*{path.split('.')[0]}"):
        get_task(name).from_row(row, 41)


@pytest.mark.parametrize("name", TASKS)
def test_a_missing_field_and_a_row_that_is_no_object(name):
    with pytest.raises(DataError, match=rf"{name}, row 7, field .*missing|{name}, row 7, field .*expected"):
        get_task(name).from_row({"unknown": 1}, 7)
    with pytest.raises(DataError, match=rf"{name}, row 7: a row must be an object"):
        get_task(name).from_row(["text"], 7)


def test_unknown_task_suggests_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'boolq'"):
        get_task("bolq")


def test_question_mark_is_ensured_once():
    assert as_question("Who?") == as_question(" Who ") == as_question("Who.") == "Question: Who?"


def test_the_content_hash_covers_every_field():
    made = example("boolq")
    assert made.content_hash() == example("boolq").content_hash()
    row = {**ROWS["boolq"][0], "answer": False}
    assert get_task("boolq").from_row(row, 0).content_hash() != made.content_hash()


def test_examples_that_contradict_themselves_are_refused():
    fields = vars(example("boolq"))
    for change in ({"gold": 2}, {"gold": None}, {"kind": "other"}, {"kind": "perplexity"}, {"kind": "generate", "answers": ()}):
        with pytest.raises(DataError):
            Example(**{**fields, **change})
