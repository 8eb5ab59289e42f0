"""Metrics against answers worked by hand."""

from __future__ import annotations

import math

import pytest

from acct.errors import ConfigError, InputError
from acct.evaluation.metrics import (
    AnswerCleaning,
    accuracy,
    candidate_scores,
    choose,
    clean_answer,
    exact_match,
    extracted_choice,
    normalise_answer,
    paired_mean,
    paired_perplexity,
    perplexity,
    token_f1,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Beatles!", "beatles"),
        ("a U.S. Army officer", "us army officer"),
        ("An apple, the pear", "apple pear"),
        ("theatre and anthem", "theatre and anthem"),  # articles are whole words
        ("The", ""),
        ("well-known", "wellknown"),
        ("São Paulo", "são paulo"),
    ],
)
def test_squad_normalisation(text, expected):
    assert normalise_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("the cat sat", ["cat sat"], 1.0),
        ("cat", ["black cat"], 2 / 3),  # precision 1, recall 1/2
        ("one two three four", ["three four five"], 4 / 7),  # 2 shared of 4 and 3
        ("dog dog", ["dog"], 2 / 3),  # a word counts as often as the other side has it: precision 1/2, recall 1
        ("dog dog", ["dog dog cat"], 4 / 5),
        ("paris", ["london"], 0.0),
        ("paris", ["london", "paris france", "Paris."], 1.0),  # the best answer counts
        ("", ["paris"], 0.0),
        ("the", ["The"], 1.0),
        ("the", ["cat"], 0.0),
    ],
)
def test_token_f1(prediction, answers, expected):
    assert token_f1(prediction, answers) == pytest.approx(expected, abs=1e-12)


def test_exact_match():
    assert exact_match("The Tavin.", ["river", "tavin"]) == 1.0
    assert exact_match("Tavin river", ["tavin"]) == 0.0


@pytest.mark.parametrize("answers", [[], "Paris"])
def test_answers_must_be_a_list_with_an_entry(answers):
    for score in (token_f1, exact_match):
        with pytest.raises(InputError, match="at least one accepted answer"):
            score("Paris", answers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Paris.", "Paris"),
        (" Paris. It lies on the Seine.", "Paris"),
        ("\n Paris\nQuestion: next?", "Paris"),
        ("Paris! Yes", "Paris"),
        ("J. K. Rowling. She wrote it.", "J. K. Rowling"),
        ("St. Louis.", "St. Louis"),
        ("3.5 million. More", "3.5 million"),
        ("vitamin C.", "vitamin C"),
        ("Paris,", "Paris"),
        ("", ""),
        (".", ""),
    ],
)
def test_the_answer_ends_at_the_line_or_the_sentence(text, expected):
    assert clean_answer(text) == expected


def test_cleaning_is_a_matter_of_two_fields():
    text = "Paris. It lies\nthere."
    assert clean_answer(text, AnswerCleaning(sentence=False)) == "Paris. It lies"
    assert clean_answer(text, AnswerCleaning(newline=False)) == "Paris"
    assert clean_answer(text, AnswerCleaning(False, False)) == text


def test_a_choice_extracted_from_a_generated_answer():
    assert extracted_choice(" Yes, it is.", ("yes", "no")) == 0
    assert extracted_choice("the Tavin River. It", ("Tavin", "Tavin River", "Tavin River Bank")) == 1
    assert extracted_choice("nothing", ("no", "yes")) is None
    assert extracted_choice("", ("no", "yes")) is None
    assert extracted_choice("B", ("A", "B")) == 1


def test_candidates_by_mean_or_sum():
    nlls = [[1.0, 1.0, 1.0], [2.0]]
    assert candidate_scores(nlls, [0, 0]) == [1.0, 2.0]
    assert candidate_scores(nlls, [0, 0], "sum") == [3.0, 2.0]
    assert accuracy(nlls, [0, 0], gold=0) == (1.0, 0)
    assert accuracy(nlls, [0, 0], gold=0, reduction="sum") == (0.0, 1)


def test_only_scored_tokens_count():
    nlls = [[9.0, 1.0, 2.0], [0.1, 0.1, 4.0, 1.0]]  # a frequent name must not help: the suffixes are [1, 2] and [4, 1]
    assert candidate_scores(nlls, [1, 2]) == [1.5, 2.5]
    assert accuracy(nlls, [1, 2], gold=0) == (1.0, 0)


def test_the_first_of_equal_candidates_is_chosen():
    assert choose([2.0, 1.0, 1.0]) == 1
    with pytest.raises(InputError, match="at least one candidate"):
        choose([])


@pytest.mark.parametrize("nlls", [[[1.0], [math.nan]], [[1.0], [math.inf]], [[1.0], []]])
def test_candidates_that_cannot_be_scored(nlls):
    with pytest.raises(InputError, match="candidate 1"):
        candidate_scores(nlls, [0, 0])


def test_candidate_arguments_must_agree():
    with pytest.raises(InputError, match="one score_from for each candidate"):
        candidate_scores([[1.0]], [0, 0])
    with pytest.raises(ConfigError, match="reduction"):
        candidate_scores([[1.0]], [0], "median")


def test_perplexity_weighs_tokens_not_examples():
    # 3 tokens at ln 2 and 1 token at ln 32: (3 + 5) ln 2 / 4 = ln 4
    assert perplexity([3 * math.log(2), math.log(32)], [3, 1]) == pytest.approx(4.0, rel=1e-12)
    assert perplexity([0.0], [5]) == 1.0
    assert perplexity([1e6], [1]) == math.inf


def test_paired_perplexity():
    ours, theirs, ratio = paired_perplexity([2 * math.log(8), 0.0], [2 * math.log(2), 0.0], [2, 1])
    assert (ours, theirs) == pytest.approx((4.0, 2 ** (2 / 3)))
    assert ratio == pytest.approx(theirs / ours)
    assert paired_perplexity([1e6], [0.0], [1]) == (math.inf, 1.0, pytest.approx(0.0, abs=1e-300))


def test_paired_mean():
    assert paired_mean([1.0, 0.0, 0.5], [1.0, 1.0, 0.0]) == pytest.approx((0.5, 2 / 3, 0.75))
    assert math.isnan(paired_mean([0.0], [0.0])[2])
    with pytest.raises(InputError, match="got 1 and 2"):
        paired_mean([1.0], [1.0, 1.0])


@pytest.mark.parametrize(("sums", "tokens"), [([], []), ([1.0], [1, 2]), ([1.0], [0]), ([math.nan], [1]), ([math.inf], [1])])
def test_perplexity_of_nothing_or_of_nan(sums, tokens):
    with pytest.raises(InputError):
        perplexity(sums, tokens)
