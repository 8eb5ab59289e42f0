"""The three metrics of spec 8, from text and token likelihoods to numbers; nothing here knows a model.

F1 and exact match follow the SQuAD evaluation script. Accuracy compares candidates by their mean token NLL. Perplexity is
exp(sum of NLL / sum of tokens) over all examples together, so that a token, not an example, is the unit.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from acct.errors import ConfigError, InputError

Reduction = Literal["mean", "sum"]
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ABBREVIATIONS = frozenset(("mr", "mrs", "ms", "dr", "st", "mt", "ft", "jr", "sr", "vs", "no", "prof", "gen", "col", "capt", "lt"))


@dataclass(frozen=True)
class AnswerCleaning:
    """Where a generated answer ends.

    Attributes:
        newline: cut at the first line break after text. [ours]
        sentence: cut at the first sentence end: . ! or ? before a blank or the end; a full stop after an initial or a common
            abbreviation ("J. K. Rowling", "St. Louis") is none. [ours]
    """

    newline: bool = field(default=True, metadata={"paper": "silent: a base model goes on with a next question"})
    sentence: bool = field(default=True, metadata={"paper": "silent: the cue begins a sentence, its end is the answer's"})


def clean_answer(text: str, cleaning: AnswerCleaning | None = None) -> str:
    """The answer inside a generated text, without closing punctuation."""
    cleaning = cleaning or AnswerCleaning()
    text = text.strip()
    if cleaning.newline:
        text = text.split("\n", 1)[0].strip()
    if cleaning.sentence:
        for end in re.finditer(r"[.!?](?=\s|$)", text):
            word = re.search(r"(\w+)$", text[: end.start()])
            initial = word is not None and len(word[1]) == 1 and word[1].isupper() and end.end() < len(text)
            if end[0] != "." or word is None or not (initial or word[1].lower() in _ABBREVIATIONS):
                text = text[: end.start()]
                break
    return text.strip().rstrip(",;:").strip()


def normalise_answer(text: str) -> str:
    """SQuAD: lower case, ASCII punctuation removed, the articles a, an, the removed, blanks collapsed."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Largest F1 over the accepted answers, of the multisets of normalised words; in [0, 1].

    Where either side has no words left, 1 if both have none, else 0.
    """
    return max(_f1(prediction, answer) for answer in _some(answers))


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 where the normalised prediction equals a normalised answer, else 0."""
    return float(any(normalise_answer(prediction) == normalise_answer(answer) for answer in _some(answers)))


def _f1(prediction: str, answer: str) -> float:
    predicted, expected = normalise_answer(prediction).split(), normalise_answer(answer).split()
    if not predicted or not expected:
        return float(predicted == expected)
    shared = sum((Counter(predicted) & Counter(expected)).values())
    return 2 * shared / (len(predicted) + len(expected))


def _some(answers: Sequence[str]) -> Sequence[str]:
    if isinstance(answers, str) or not answers:
        raise InputError(f"expected a list of at least one accepted answer, got {answers!r}.")
    return answers


def extracted_choice(text: str, candidates: Sequence[str]) -> int | None:
    """The candidate that a generated answer begins with, by normalised words; the longest such one, None where there is none."""
    words = normalise_answer(clean_answer(text)).split()
    found = [
        (len(own), -index) for index, own in enumerate(normalise_answer(c).split() for c in candidates) if own and words[: len(own)] == own
    ]
    return -max(found)[1] if found else None


def candidate_scores(token_nlls: Sequence[Sequence[float]], score_from: Sequence[int], reduction: Reduction = "mean") -> list[float]:
    """NLL of each candidate, over its scored tokens.

    Args:
        token_nlls: for each candidate the NLL of each of its tokens, in nats. score_from: index of each one's first scored token.
        reduction: "mean" per token, which does not favour short candidates; for single letters and for a common suffix of equal
            tokens it ranks as "sum" does. One rule for all tasks. [ours]
    Raises:
        InputError: no scored token, or an NLL that is not finite.
    """
    if reduction not in ("mean", "sum"):
        raise ConfigError(f"the candidate reduction must be 'mean' or 'sum', got {reduction!r}.")
    if len(token_nlls) != len(score_from):
        raise InputError(f"expected one score_from for each candidate, got {len(score_from)} for {len(token_nlls)}.")
    scores = []
    for index, (nlls, start) in enumerate(zip(token_nlls, score_from)):
        scored = [float(nll) for nll in nlls][start:]
        if not scored or not all(map(math.isfinite, scored)):
            raise InputError(f"candidate {index}: expected at least one finite token NLL from token {start}, got {scored[:8]}.")
        scores.append(math.fsum(scored) / (len(scored) if reduction == "mean" else 1))
    return scores


def choose(scores: Sequence[float]) -> int:
    """Index of the lowest NLL; the first one of equals."""
    if not scores:
        raise InputError("expected at least one candidate score, got none.")
    return min(range(len(scores)), key=lambda index: scores[index])


def accuracy(
    token_nlls: Sequence[Sequence[float]], score_from: Sequence[int], gold: int, reduction: Reduction = "mean"
) -> tuple[float, int]:
    """1 where the gold candidate is the most likely one, else 0; and the candidate chosen."""
    chosen = choose(candidate_scores(token_nlls, score_from, reduction))
    return float(chosen == gold), chosen


def perplexity(nll_sums: Sequence[float], tokens: Sequence[int]) -> float:
    """exp(sum of NLL / sum of tokens).

    Args:
        nll_sums: NLL of each example's continuation, summed, in nats. tokens: its scored tokens.
    Returns:
        the perplexity; infinity where it exceeds the floating-point range.
    """
    _checked(nll_sums, tokens)
    mean = math.fsum(nll_sums) / sum(tokens)
    return math.exp(mean) if mean < 709.0 else math.inf


def paired_perplexity(method: Sequence[float], reference: Sequence[float], tokens: Sequence[int]) -> tuple[float, float, float]:
    """Perplexities of a method and of the reference on the same tokens, and reference / method (1 = equal, above 1 = better)."""
    _checked(method, tokens)
    _checked(reference, tokens)
    ratio = math.exp(max(min((math.fsum(reference) - math.fsum(method)) / sum(tokens), 709.0), -745.0))
    return perplexity(method, tokens), perplexity(reference, tokens), ratio


def paired_mean(method: Sequence[float], reference: Sequence[float]) -> tuple[float, float, float]:
    """Mean F1 or accuracy of a method and of the reference on the same examples, and method / reference (NaN at a reference of 0)."""
    if len(method) != len(reference) or not method:
        raise InputError(f"expected one score of each side for every example, got {len(method)} and {len(reference)}.")
    ours, theirs = math.fsum(method) / len(method), math.fsum(reference) / len(reference)
    return ours, theirs, ours / theirs if theirs else math.nan


def _checked(nll_sums: Sequence[float], tokens: Sequence[int]) -> None:
    if len(nll_sums) != len(tokens) or not tokens:
        raise InputError(f"expected one token count for every NLL and at least one, got {len(nll_sums)} NLL and {len(tokens)} counts.")
    if min(tokens) < 1:
        raise InputError(f"every example needs at least one scored token, got a count of {min(tokens)}.")
    if not all(map(math.isfinite, nll_sums)):
        raise InputError("an NLL is NaN or infinite: check the states that were mounted.")
