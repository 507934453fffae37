"""What a batch may be: containers keep their type, objects are moved by their own ``to``, others are registered."""

import types
from collections import OrderedDict, UserDict, UserList, defaultdict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import unisono
from unisono.data.batches import XY, change_tensors, move
from unisono.errors import ConfigError

META = torch.device("meta")
ONES = torch.ones(2, 3)
Pair = namedtuple("Pair", "a b")


class Named(Pair):
    """A named tuple with a method."""

    def total(self):
        return self.a.sum()


class Words(dict):
    """A dictionary with an attribute."""


class Rows(list):
    """A list of another type."""


class Holder(UserDict):
    """What `transformers.BatchEncoding` is, without a ``to``."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A dataclass that nobody may write into."""

    x: object
    count: int = 3
    rows: list = field(default_factory=list)


@dataclass
class Derived:
    """A dataclass whose constructor takes something else."""

    x: object
    size: int = field(init=False)

    def __post_init__(self):
        self.size = len(self.x)


class Graph:
    """A batch that knows how to move itself."""

    def __init__(self, x, edges):
        self.x, self.edges = x, edges

    def to(self, device, non_blocking=False):
        assert non_blocking
        return Graph(self.x.to(device), self.edges.to(device))


class InPlace:
    """A batch that moves itself and returns nothing, and takes no more than a device."""

    def __init__(self, x):
        self.x = x

    def to(self, device):
        self.x = self.x.to(device)


class Opaque:
    """A batch of a type that nothing is known of."""

    def __init__(self, x):
        self.x = x


def words():
    found = Words(a=ONES)
    found.origin = "here"
    return found


BATCHES = {
    "tensor": (ONES, lambda got: [got]),
    "pair": (XY(ONES, [ONES, "text"]), lambda got: [got.x, got.y[0]]),
    "named tuple": (Named(ONES, None), lambda got: [got.a, got.total()]),
    "tuple": ((ONES, 3), lambda got: [got[0]]),
    "list": (Rows([ONES, ONES]), list),
    "user list": (UserList([ONES]), list),
    "dict": ({"a": {"b": ONES}}, lambda got: [got["a"]["b"]]),
    "ordered": (OrderedDict(b=ONES, a=ONES), lambda got: [*got.values()]),
    "default": (defaultdict(list, {"a": [ONES]}), lambda got: got["a"]),
    "dict type": (words(), lambda got: [got["a"]]),
    "user dict": (Holder(a=[ONES]), lambda got: got["a"]),
    "read only": (types.MappingProxyType({"a": ONES}), lambda got: [got["a"]]),
    "frozen": (Frozen(ONES, rows=[ONES]), lambda got: [got.x, *got.rows]),
    "derived": (Derived(ONES), lambda got: [got.x]),
    "namespace": (types.SimpleNamespace(x=ONES), lambda got: [got.x]),
    "packed": (pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False), lambda got: [got.data]),
    "values": (torch.max(ONES, dim=0), list),
    "graph": (Graph(ONES, ONES), lambda got: [got.x, got.edges]),
    "in place": (InPlace(ONES), lambda got: [got.x]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_every_tensor_moves_and_every_type_stays(name):
    """To another device, without a change of what it came from, unless that moves itself."""
    batch, tensors_of = BATCHES[name]
    moved = move(batch, META)
    assert type(moved) is type(batch)
    assert {tensor.device.type for tensor in tensors_of(moved)} == {"meta"}
    if name != "in place":
        assert {tensor.device.type for tensor in tensors_of(batch)} == {"cpu"}


def test_what_containers_keep_beside_tensors():
    """Order, factories, attributes, fields that are no arguments, lengths of packed sequences."""
    assert move(words(), META).origin == "here"
    assert [*move(OrderedDict(b=ONES, a=ONES), META)] == ["b", "a"]
    assert move(defaultdict(list), META).default_factory is list
    assert (move(Derived(ONES), META).size, move(Frozen(ONES), META).count) == (2, 3)
    packed = move(BATCHES["packed"][0], META)
    assert packed.batch_sizes.tolist() == [2, 2, 1]
    assert packed.batch_sizes.device.type == "cpu"
    assert move((ONES, 3, "text", None, {1}), META)[1:] == (3, "text", None, {1})
    assert move(ONES, torch.device("cpu")) is ONES


def test_unknown_types_are_left_alone_until_they_are_registered():
    """A registered type is made anew by its function, derived types too, in place of a ``to`` of their own."""
    opaque = Opaque(ONES)
    assert move(opaque, META) is opaque
    kind = type("Kept", (Opaque,), {"to": lambda self, device: self})
    assert unisono.register_batch_type(Opaque, lambda batch, change: type(batch)(change(batch.x))) is Opaque
    for each in (Opaque(ONES), kind([ONES])):
        moved = move(each, META)
        assert type(moved) is type(each)
        assert next(iter(moved.x)).device.type == "meta"
    for wrong in (ONES, torch.Tensor, "Opaque"):
        with pytest.raises(ConfigError, match="expected a type of batches"):
            unisono.register_batch_type(wrong, lambda batch, change: batch)


def test_tensors_are_changed_in_any_container():
    """The same walk for another purpose; an object's own ``to`` is not asked then."""
    batch = XY(Frozen(ONES), {"a": Holder(b=ONES), "c": "text"})
    changed = change_tensors(batch, lambda tensor: tensor + 1)
    assert changed.x.x.tolist() == changed.y["a"]["b"].tolist() == (ONES + 1).tolist()
    assert type(change_tensors(BATCHES["packed"][0], torch.neg)) is PackedSequence


def test_a_run_trains_on_them():
    """A collate function may return a frozen dataclass or a graph: the loss gets it, with the samples counted right."""

    def collate(samples):
        rows = torch.stack([torch.as_tensor(x) for x, _ in samples])
        return Frozen(Graph(rows, torch.tensor([y for _, y in samples])), count=len(samples))

    data = unisono.ArrayDataset(torch.randn(10, 4), torch.arange(10) % 3)
    with unisono.Run(replicas=3) as run:
        model = torch.nn.Linear(4, 3)
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        seen = []

        def loss(micro):
            seen.append(micro.count)
            return torch.nn.functional.cross_entropy(model(micro.x.x), micro.x.edges)

        for batch in run.steps(run.loader(data, batch_size=7, collate=collate), epochs=1):
            run.step(batch, loss)
    assert seen == [3, 2, 2, 1, 1, 1]
