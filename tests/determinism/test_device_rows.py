"""Rows of small tensors: what has changed since the first one, of every kind and layout, and the largest values."""

import math

import pytest
import torch

from reference import bits
from unisono.determinism.device_rows import DeviceRows


def tensors():
    """Return tensors of all kinds and layouts that buffers have."""
    return [
        torch.tensor([1.0, math.nan, -0.0]), torch.tensor(3), torch.zeros(0), torch.arange(12.0).view(3, 4).t(),
        torch.tensor([True, False, True]), torch.full((5,), 2.0).half(), torch.zeros(2, dtype=torch.complex64),
        torch.arange(4, dtype=torch.int64), torch.ones(1).double(), torch.zeros(2, dtype=torch.int64),
    ]  # fmt: skip


def told(rows):
    """Return which tensors some row has otherwise than the first."""
    order, counts = rows.differences()
    steps = zip(order, [0, *counts.tolist()], counts.tolist(), strict=False)
    return {index for index, before, after in steps if after != before}


def test_what_was_is_put_back():
    """All bits of all kinds, also into memory that is not contiguous; the first row shows them in their shapes."""
    made = tensors()
    before, rows = [bits(tensor) for tensor in made], DeviceRows(made)
    rows.start()
    assert [bits(first) for first in rows.first()] == before
    for tensor in made:
        tensor.fill_(1)
    assert [bits(tensor) for tensor in made] != before
    rows.restore()
    assert [bits(tensor) for tensor in made] == before


@pytest.mark.parametrize("index", [1, 3, 4, 5, 6, 7, 8])
def test_what_has_changed_is_known(index):
    """In any row, and of each tensor by itself; NaN is never equal, as with `torch.equal`."""
    made = tensors()
    rows = DeviceRows(made)
    rows.start()
    rows.take(made)
    assert told(rows) == {0}, "NaN"
    last = tuple(size - 1 for size in made[index].shape)
    made[index][last] = 0 if made[index][last] else 1
    rows.take(made)
    rows.restore()
    rows.take(made)
    assert told(rows) == {0, index}
    rows.start()
    rows.take(made)
    assert told(rows) == {0}, "a new beginning"


def test_others_in_the_place_of_tensors_are_taken():
    """What a module has put there, whatever its layout; the tensors themselves stay what `restore` writes to."""
    made = tensors()
    rows = DeviceRows(made)
    rows.start()
    others = [tensor.clone() for tensor in made]
    others[7] = torch.tensor([[9, 1], [1, 1]]).t().reshape(-1)
    rows.take(others)
    assert told(rows) == {0, 7}
    assert rows.largest()[7].tolist() == [9, 1, 1, 1]


def test_memory_that_is_another_one_is_followed():
    """A tensor may be given other memory between steps."""
    made = tensors()
    rows = DeviceRows(made)
    made[0].data = torch.tensor([5.0, 6.0, 7.0])
    rows.start()
    made[0].zero_()
    rows.restore()
    assert made[0].tolist() == [5, 6, 7]
    made[0].data = torch.tensor([[1.0, 9.0], [2.0, 9.0], [3.0, 9.0]])[:, 0]  # not contiguous, as it was
    rows.restore()
    assert made[0].tolist() == [5, 6, 7]
    made[0].fill_(8)
    rows.take(made)
    rows.restore()
    assert (made[0].tolist(), told(rows)) == ([5, 6, 7], {0})


def test_the_largest_whole_numbers_are_those_of_all_later_rows():
    """Truth values and counters, in their shapes; the first row does not count, and numbers with a point have none."""
    made = tensors()
    rows = DeviceRows(made)
    made[1].fill_(100)
    rows.start()
    for value in (4, 9, 6):
        made[1].fill_(value)
        made[4][1] = value == 6
        rows.take(made)
    found = rows.largest()
    assert {index: value.tolist() for index, value in found.items()} == {
        1: 9, 4: [True, True, True], 7: [0, 1, 2, 3], 9: [0, 0],
    }  # fmt: skip


def test_large_rows_are_few():
    """Memory has an end: many small rows, or one large one."""
    assert DeviceRows([torch.zeros(3)]).capacity == 16
    assert DeviceRows([torch.zeros(1 << 20)]).capacity == 4
    assert DeviceRows([torch.zeros(1 << 23)]).capacity == 1
