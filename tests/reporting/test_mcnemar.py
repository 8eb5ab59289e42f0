"""McNemar's exact test and Holm's adjustment against figures worked by hand and a textbook example."""

from __future__ import annotations

import csv
import io
from fractions import Fraction
from math import comb
from pathlib import Path

import numpy as np
import pytest

from acct.errors import ArtifactError, ConfigError
from acct.reporting.figures import Sheet
from acct.reporting.intervals import Bootstrap
from acct.reporting.mcnemar import exact, holm, paired
from acct.reporting.records import Records, as_frame
from acct.reporting.render import markdown
from acct.reporting.significance import COLUMNS, compare, p_text, significance_csv, significance_table, summary_line
from acct.reporting.write import write_tables
from tests.reporting.stored import row, rows, store


@pytest.mark.parametrize(
    ("b", "c", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),  # 2 * 1/2
        (5, 0, 2 / 32),
        (0, 6, 2 / 64),
        (8, 2, 2 * (1 + 10 + 45) / 1024),
        (3, 3, 1.0),  # 2 * 42/64 is cut off at 1
        (9, 1, 2 * (1 + 10) / 1024),
    ],
)
def test_binomials_by_hand(b: int, c: int, p: float) -> None:
    assert exact(b, c) == pytest.approx(p, rel=1e-12) and exact(c, b) == exact(b, c)


def test_a_textbook_example() -> None:
    """Change of opinion in 25 of all subjects, 21 one way and 4 the other: the exact tail in fractions, 2 x 15,276 / 2^25.

    The approximations that textbooks give beside it, chi-squared 11.56 (p 0.0007) and 10.24 with correction (p 0.0014), lie around it.
    """
    tail = Fraction(sum(comb(25, k) for k in range(5)), 2**25)
    assert exact(21, 4) == pytest.approx(float(2 * tail), rel=1e-12) == pytest.approx(0.000911, abs=1e-6)
    assert exact(150, 86) == pytest.approx(float(Fraction(2 * sum(comb(236, k) for k in range(87)), 2**236)), rel=1e-9)
    assert 2e-5 < exact(150, 86) < 5e-5  # Agresti's approval ratings, where z = 4.17 gives 3e-5


def test_counts_of_paired_answers() -> None:
    found = paired(np.array([1.0, 1, 1, 0, 0, 1]), np.array([1.0, 0, 0, 1, 0, 0]))
    assert (found.examples, found.first_only, found.second_only) == (6, 3, 1)
    assert found.p_value == pytest.approx(2 * (1 + 4) / 16)


def test_what_is_no_pair_of_answers_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"score of 0\.5"):
        paired(np.array([1.0, 0.5]), np.array([1.0, 0.0]))
    with pytest.raises(ArtifactError, match="got 2 and 1"):
        paired(np.ones(2), np.ones(1))
    with pytest.raises(ConfigError, match="b = -1"):
        exact(-1, 2)


def test_holm_by_hand() -> None:
    """Four values: 4 x 0.01, 3 x 0.02, then 2 x 0.03 is not below its predecessor, then 1 x 0.04 is raised to it."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


def sheet() -> Sheet:
    """20 examples of BoolQ: ACCT alone is right on 8, Random alone on 2; Target Full is right wherever ACCT is, and on 5 more."""
    answers = {"acct": [1] * 10 + [0] * 10, "random": [0] * 8 + [1] * 2 + [1] * 2 + [0] * 8, "target_full": [1] * 15 + [0] * 5}
    found = [row("a_to_b", "boolq", m, i, score=float(s)) for m, own in answers.items() for i, s in enumerate(own)]
    return Sheet(Records(as_frame([*found, *rows()]), {"a_to_b": {}}), Bootstrap(500))


def test_the_table_by_hand() -> None:
    found = {(one.task, one.other): one for one in compare(sheet())}
    assert set(found) == {("boolq", "target_full"), ("boolq", "random"), ("wikitext", "target_full"), *(
        ("search_qa", other) for other in ("target_full", "random", "bridge_only", "native_kv", "no_context")
    )}  # fmt: skip
    random, full = found["boolq", "random"], found["boolq", "target_full"]
    assert random.counts is not None and full.counts is not None
    assert (random.counts.first_only, random.counts.second_only, random.examples) == (8, 2, 20)
    assert (random.method_value, random.other_value, random.difference.value) == pytest.approx((50.0, 20.0, 30.0))
    assert random.counts.p_value == pytest.approx(112 / 1024) and full.counts.p_value == pytest.approx(2 / 32)
    assert (full.adjusted, random.adjusted) == pytest.approx((4 / 32, 4 / 32))  # 2 x 0.0625; 0.109 is raised to it
    assert full.difference.value == pytest.approx(-25.0) and full.difference.upper <= 0
    f1 = found["search_qa", "random"]
    assert f1.counts is None and f1.adjusted is None and f1.difference.value == pytest.approx(25.0)
    wiki = found["wikitext", "target_full"]
    assert wiki.difference.value == pytest.approx(np.e - np.e**2) and wiki.difference.value < 0  # higher perplexity is worse


def test_rendered() -> None:
    own = sheet()
    comparisons = compare(own)
    text = markdown(significance_table(own, comparisons))
    assert "| BoolQ (Acc.), against Random | 50.0 | 20.0 | 30.0 [" in text and "| 20 | 8 | 2 | 0.109 | 0.125 |" in text
    assert "over the 2 tests" in text
    assert any(
        line.startswith("| SearchQA (F1), against No context |") and line.endswith("| 4 | – | – | – | – |") for line in text.splitlines()
    )
    lines = list(csv.DictReader(io.StringIO(significance_csv(comparisons))))
    assert tuple(lines[0]) == COLUMNS and len(lines) == len(comparisons)
    boolq = next(line for line in lines if (line["task"], line["other"]) == ("boolq", "random"))
    assert (boolq["method_only"], boolq["other_only"], boolq["p_value"], boolq["p_holm"]) == ("8", "2", "0.109375", "0.125")
    assert next(line for line in lines if line["task"] == "search_qa")["p_value"] == ""
    assert summary_line(comparisons) == "significance: 8 paired comparisons, 0 of 2 McNemar tests with p (Holm) < 0.05"
    assert [p_text(p) for p in (0.0004, 0.0316, float("nan"))] == ["<0.001", "0.032", "–"]


def test_tables_write_it(tmp_path: Path) -> None:
    store(tmp_path)
    names = {path.name for path in write_tables(tmp_path, "micro", bootstrap=Bootstrap(100)).files}
    assert {"significance.md", "significance.csv", "significance.tex"} <= names
    assert "significance: 6 paired comparisons" in "\n".join(write_tables(tmp_path, "micro", bootstrap=Bootstrap(100)).lines)
