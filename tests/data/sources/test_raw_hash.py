"""What ranks compare: types, shapes, values."""

import collections
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unisono.data.sources.raw_hash import hash_item
from unisono.errors import DataError

Pair = collections.namedtuple("Pair", "x y")
DIFFERENT = [
    None, True, 1, 1.0, -0.0, 0.0, "1", b"1", "", [], (), {}, [1, [2]], [[1], 2], {"a": 1}, {"a": 2}, {1: "a"},
    np.arange(4), np.arange(4.0), np.arange(4).reshape(2, 2), torch.arange(4), torch.tensor([1.5]),
    torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor([1.5], dtype=torch.float16), np.float32(1.5), Pair(1, 2),
    torch.tensor([2.5], dtype=torch.bfloat16), Image.new("L", (2, 2), 3), "\ud800",
]  # fmt: skip


def test_whatever_differs_has_another_hash():
    """Also types of one value, and the same in other brackets; equal items have equal ones."""
    found = [hash_item(item) for item in DIFFERENT]
    assert len(set(found)) == len(DIFFERENT)
    assert [hash_item(item) for item in DIFFERENT] == found
    assert hash_item(np.arange(8)[::2]) == hash_item(np.arange(8)[::2].copy())
    assert hash_item(torch.ones(2, requires_grad=True)) == hash_item(torch.ones(2))


@pytest.mark.parametrize("item", [object(), {"a": {1, 2}}, [Path("a")], np.array([object()])])
def test_what_has_no_bytes_is_refused(item):
    """With what to do."""
    with pytest.raises(DataError, match=r"expected items of numbers, .* Hint: yield what it is made of"):
        hash_item(item)
