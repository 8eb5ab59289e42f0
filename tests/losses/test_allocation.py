"""Answer NLL and output KL against sums worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from acct.errors import DataError
from acct.losses.allocation import answer_nll, output_kl


def test_nll_averages_inside_an_example_first() -> None:
    logits = torch.tensor([[[math.log(3.0), 0.0], [0.0, math.log(7.0)]], [[0.0, 0.0], [9.0, 1.0]]])
    ids, mask = torch.tensor([[0, 0], [1, -100]]), torch.tensor([[True, True], [True, False]])
    expected = ((math.log(4 / 3) + math.log(8)) / 2 + math.log(2)) / 2
    assert float(answer_nll(logits, ids, mask)) == pytest.approx(expected, rel=1e-6)


def test_output_kl_is_zero_at_the_teacher_and_leaves_the_teacher_alone() -> None:
    teacher = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert float(output_kl(teacher, teacher + 3, mask).detach()) == pytest.approx(0.0, abs=1e-6)
    student = torch.zeros(2, 3, 5, requires_grad=True)
    loss = output_kl(teacher, student, mask)
    loss.backward()
    p = teacher.detach().softmax(-1)
    divergence = (p * (p.log() + math.log(5))).sum(-1)
    assert float(loss.detach()) == pytest.approx(float((divergence[0, :2].mean() + divergence[1, 0]) / 2), rel=1e-5)
    assert teacher.grad is None and student.grad is not None and not student.grad[0, 2].any()


def test_an_empty_answer_names_the_example() -> None:
    with pytest.raises(DataError, match="example 1 has no answer token"):
        answer_nll(torch.zeros(2, 1, 4), torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[True], [False]]))
