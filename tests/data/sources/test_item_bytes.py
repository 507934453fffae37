"""Items as bytes: what comes out is what went in, to the type and the bit."""

import collections

import numpy as np
import pytest
import torch

from unisono.data.sources.item_bytes import pack, unpack
from unisono.data.sources.raw_hash import hash_item
from unisono.errors import DataError

ITEM = {
    "numbers": [None, True, 3, -0.0, float("inf"), 1 + 2j, 10**40], 7: ("a\udc80b", b"\0\1", bytearray(b"x")),
    "arrays": (np.arange(6, dtype=">i2").reshape(2, 3), np.float32(0.1), np.zeros((0, 3)), np.array(["ab", "c"])),
    "tensors": [torch.arange(6).view(2, 3), torch.tensor([1.5, -0.0], dtype=torch.bfloat16), torch.zeros(0, 2),
                torch.tensor(True)],
}  # fmt: skip


def shapes(item):
    """Return the types in an item, with shapes, in order."""
    if isinstance(item, dict):
        return [dict, [(shapes(key), shapes(value)) for key, value in item.items()]]
    if isinstance(item, list | tuple):
        return [type(item), [shapes(value) for value in item]]
    return type(item), getattr(item, "dtype", None), getattr(item, "shape", None)


def test_the_same_comes_out():
    """Types, order, shapes and content; in memory of its own."""
    found = unpack(pack(ITEM))
    assert shapes(found) == shapes(ITEM)
    assert hash_item(found) == hash_item(ITEM)
    found["arrays"][0][:] = 1
    assert hash_item(unpack(pack(ITEM))) == hash_item(ITEM) != hash_item(found)


@pytest.mark.parametrize(
    ("item", "kind"),
    [(collections.OrderedDict(), "OrderedDict"), (torch.zeros(2, 3).t(), "Tensor"), (np.zeros((2, 3)).T, "ndarray"),
     (np.array([object()]), "ndarray"), ({1, 2}, "set"), (torch.nn.Parameter(torch.zeros(1)), "Parameter")],
)  # fmt: skip
def test_other_types_are_refused(item, kind):
    """Also inside of others: what comes out could compute to other bits."""
    with pytest.raises(DataError, match=f"got a {kind}. Hint: .contiguous()"):
        pack([1, [item]])
