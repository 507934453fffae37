"""Nested state survives JSON as it was, tensors beside it; what would need pickle is named."""

import json
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from unisono.checkpoint.format import pack
from unisono.checkpoint.values import few, from_json, printable, to_json
from unisono.errors import CheckpointError


class Odd:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": {"b": [1, {2, 3}]}}, r"state\.scheduler\.a\.b\[1\]"),
        ({"f": json.dumps}, r"state\.scheduler\.f"),
        ({"t": (1, b"x")}, r"state\.scheduler\.t\[1\]"),
        ({"c": {5: object()}}, r"state\.scheduler\.c\[5\]"),
        ({"x": np.array(["a"])}, r"state\.scheduler\.x"),
    ],
)
def test_what_would_need_pickle_is_named(value, place):
    """A value that is no plain one is refused with the place where it stands and its type."""
    model = nn.Linear(1, 1)
    with pytest.raises(CheckpointError, match=f"cannot save {place}: "):
        pack(model, torch.optim.SGD(model.parameters()), Odd(value), {})


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = (
    st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.sampled_from(["$tuple", "$dict", "$counter"])
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.integers(), st.integers(), max_size=4).map(Counter)
    ),
    max_leaves=15,
)


def same(left, right):
    """Whether two values are equal, types included all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right and repr(left) == repr(right)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work may fill the machine
@given(values)
def test_json_round_trip(value):
    """Tuples, counters, integer keys, signed zeros and keys that look like our own marks come back as they were."""
    assert same(from_json(json.loads(json.dumps(to_json(value, "x")))), value)


def test_json_round_trip_of_what_is_nearly_a_dictionary():
    """NaN and infinity survive; an ordered dictionary comes back with the same items in the same order."""
    value = {"nan": float("nan"), "inf": -float("inf"), "o": OrderedDict([("b", 1), ("a", 2)])}
    back = from_json(json.loads(json.dumps(to_json(value, "x"))))
    assert back["nan"] != back["nan"]
    assert back["inf"] == -float("inf")
    assert list(back["o"].items()) == [("b", 1), ("a", 2)]
    assert not same((1,), [1])  # the control of `same`
    assert not same(Counter(a=1), {"a": 1})


def test_tensors_and_arrays_stand_beside():
    """Tensors, arrays and NumPy numbers come back with dtype, shape and bits, wherever they were nested."""
    value = {
        "t": [torch.ones(2, 3, dtype=torch.bfloat16), (torch.tensor(5), "x")],
        "n": {3: np.int16(-4), "b": np.bool_(True), "f": np.float32(0.1)},
        "a": np.arange(3.0),
    }
    tensors = {}
    text = json.dumps(to_json(value, "x", tensors))
    back = from_json(json.loads(text), {key: tensor.clone() for key, tensor in tensors.items()})
    assert torch.equal(back["t"][0], value["t"][0])
    assert back["t"][0].dtype == torch.bfloat16
    assert back["t"][1][0].item() == 5
    assert back["a"].dtype == np.float64
    assert back["a"].tolist() == [0, 1, 2]
    assert {key: type(item) for key, item in back["n"].items()} == {3: np.int16, "b": np.bool_, "f": np.float32}
    assert back["n"] == value["n"]


def test_places_that_look_alike_stay_apart():
    """Two tensors whose places are spelt alike do not overwrite each other."""
    tensors = {}
    text = to_json({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, "x", tensors)
    back = from_json(text, tensors)
    assert (back["a.b"].item(), back["a"]["b"].item()) == (0, 1)


def test_tensors_are_refused_where_there_is_no_place_for_them():
    """Without a place for tensors they are refused; a missing one is named on the way back."""
    with pytest.raises(CheckpointError, match=r"cannot save x\.t: expected a plain value, got Tensor"):
        to_json({"t": torch.ones(1)}, "x")
    with pytest.raises(CheckpointError, match="'gone', which the checkpoint does not hold"):
        from_json({"a": {"$tensor": "gone"}}, {})


def test_control_characters_are_stripped():
    """Names from a stranger's file cannot move the cursor or colour the terminal."""
    assert printable("a\x1b[31m\x00\x9bb\n\tc\u202e") == "a\ufffd[31m\ufffd\ufffdb\n\tc\ufffd"
    assert few(["\x1b]0;x\x07", "b", "c", "d"]) == "\ufffd]0;x\ufffd, b, c and 1 more"
    assert few([]) == "none"
