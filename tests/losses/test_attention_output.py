"""What attention reads over compiled states, against its slow twin: value, both gradients, edges."""

from __future__ import annotations

import pytest
import torch

from acct.losses.attention_output import attention_output
from acct.losses.compilation import attention_teacher
from acct.selection import gather_native
from tests.compiler.states import draw
from tests.losses.test_compilation import SCALING, assert_equal, compiled, rotate, rotated
from tests.reference import compilation as reference


@pytest.mark.parametrize(
    ("contexts", "queries", "tail", "empty", "positions"),
    [((7, 2, 11), (4, 7, 3), 3, (4,), 5), ((5,), (1,), 0, (0, 1, 2), 32), ((1, 9), (6, 2), 2, (), 1), ((3, 3), (3, 5), 0, range(9), 4)],
)
def test_equals_the_twin(contexts, queries, tail, empty, positions) -> None:
    batch = draw(5, contexts, queries, tail, empty, dtype=torch.float64, extra=2)
    keys, values = compiled(batch, 1)
    native_keys, native_values = gather_native(batch.selection, batch.native)
    teacher = attention_teacher(rotate, batch.native, batch.selection, SCALING, positions, values=True)
    got = attention_output(rotated(keys, batch), values, native_values, teacher, batch.selection)
    expected = reference.attention_output(keys, values, batch.native, batch.selection, rotate, SCALING, positions)
    if not len(keys):
        assert float(got.detach()) == float(expected.detach()) == 0
        return
    for x in (keys, values):
        assert_equal(got, expected, x)
    assert float(got.detach()) > 0
    same = attention_output(rotated(native_keys, batch), native_values, native_values, teacher, batch.selection)
    assert float(same) == 0


def test_a_value_that_nobody_reads_costs_nothing_and_a_read_one_does() -> None:
    batch = draw(6, (9,), (3,), dtype=torch.float64)
    native_keys, native_values = gather_native(batch.selection, batch.native)
    keys = rotated(native_keys, batch)
    teacher = attention_teacher(rotate, batch.native, batch.selection, 40.0, 1, values=True)  # nearly one-hot
    losses = []
    for slot in range(len(native_values)):
        values = native_values.clone()
        values[slot] += 1
        losses.append(float(attention_output(keys, values, native_values, teacher, batch.selection)))
    assert min(losses) < 1e-9 and max(losses) > 1e-3


def test_rows_that_are_not_valid_do_not_count_and_the_teacher_must_hold_values() -> None:
    batch = draw(7, (6, 5), (1, 4), dtype=torch.float64)
    keys, values = compiled(batch, 2)
    _, native_values = gather_native(batch.selection, batch.native)
    teacher = attention_teacher(rotate, batch.native, batch.selection, SCALING, 4, values=True)
    first = attention_output(rotated(keys, batch), values, native_values, teacher, batch.selection)
    teacher.queries.masked_fill_(~teacher.row_valid[:, None, None, :, None], 7.0)
    torch.testing.assert_close(attention_output(rotated(keys, batch), values, native_values, teacher, batch.selection), first)
    with pytest.raises(AssertionError, match="values=True"):
        attention_output(
            rotated(keys, batch), values, native_values, attention_teacher(rotate, batch.native, batch.selection, SCALING), batch.selection
        )
