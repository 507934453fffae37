"""The first samples are the same for every rank and at every fetch, or the run does not begin."""

import random
import time
from collections import UserDict, UserList
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from unisono.collectives.placement import place_evenly
from unisono.data import loader as loaders
from unisono.data import same_samples
from unisono.data.datasets import ArrayDataset
from unisono.data.loader import Fetcher, Loader
from unisono.data.same_samples import first_samples, parts_of_sample
from unisono.data.sampler import ExactSampler
from unisono.errors import DataError


class Numbers:
    """Sample i is (i as a vector, i), changed by a function."""

    def __init__(self, change=None):
        self.x, self.change, self.asked = torch.arange(29.0).repeat(3, 1).T.contiguous(), change, []

    def __len__(self):
        return 29

    def __getitem__(self, index):
        self.asked.append(index)
        x = self.x[index]
        return (x if self.change is None else self.change(x)), index


def look(dataset, *, num_workers=0, rank=0, seed=5, batch_size=8, **how):
    sampler = ExactSampler(len(dataset), batch_size, 4, seed=seed)
    hosted = place_evenly(4, 2)[rank]
    return first_samples(Loader(sampler, Fetcher(dataset, seed, **how), hosted, num_workers=num_workers))


def keyed(x):
    """Change a sample at random, by the generators of all three libraries."""
    return x + torch.rand(3) + random.random() + float(np.random.rand())


own = np.random.default_rng(0)
REFUSED = {
    "own generator": (lambda x: x + float(own.random()), r"sample \d+ of Numbers is another one when .* part \[0\]: "),
    "in place": (lambda x: x.add_(1), r"sample \d+ of Numbers is another one when it is fetched again"),
    "clock": (lambda x: {"x": x, "at": time.perf_counter_ns()}, r"part \[0\]\['at'\]: the result would depend"),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("change", "words"), REFUSED.values(), ids=REFUSED)
def test_a_sample_that_is_another_one_when_fetched_again(change, words, num_workers):
    """Whatever a sample depends on besides seed, epoch and number, is named before the first step."""
    with pytest.raises(DataError, match=words) as caught:
        look(Numbers(change), num_workers=num_workers)
    assert len(str(caught.value).partition("Hint: ")[2].split()) <= 45
    with pytest.raises(DataError, match=r"sample \d+ of Numbers"):
        look(Numbers(), num_workers=num_workers, transform=lambda sample: (change(sample[0]), sample[1]))


def test_random_samples_are_the_same_for_all(monkeypatch):
    """What is drawn from the keyed generators is equal in both fetches, on all ranks, with loader processes or not."""
    found = look(Numbers(keyed))
    assert found == look(Numbers(keyed), rank=1) == look(Numbers(keyed), num_workers=1)
    assert found == look(Numbers(), transform=lambda sample: (keyed(sample[0]), sample[1]), num_workers=2)
    assert not found.items() & look(Numbers(keyed), seed=6).items()
    assert [*found] == [f"sample {index}" for index in ExactSampler(29, 8, 4, seed=5).batch(1)[:4]]
    monkeypatch.setattr(loaders, "set_generators", lambda key: None)  # the control
    with pytest.raises(DataError, match="is another one"):
        look(Numbers(keyed))


class Keeping(Numbers):
    """Keeps what it has made of a sample."""

    def __init__(self, make):
        super().__init__()
        self.make, self.kept = make, {}

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = self.make(self.x[index])
        return self.kept[index], index


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_set_that_keeps_what_it_has_drawn(num_workers, recwarn):
    """It is the same at every fetch of this process, and another one in other processes: told once."""
    with pytest.warns(UserWarning, match=r"sample \d+ of Keeping has drawn other random numbers .* keep what it has"):
        found = look(Keeping(keyed), num_workers=num_workers)
    assert len(found) == 4
    recwarn.clear()
    assert look(Keeping(lambda x: x + 1), num_workers=num_workers)  # the controls
    look(Numbers(keyed), num_workers=num_workers)
    assert not [each for each in recwarn if "drawn" in str(each.message)]


def test_the_generators_are_left_as_they_were():
    """What a program draws after the look is what it would have drawn without it."""
    drawn = []
    for is_looked_at in (True, False):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        if is_looked_at:
            look(Numbers(keyed))
        drawn.append((torch.rand(1).item(), random.random(), float(np.random.rand())))
    assert drawn[0] == drawn[1]


def test_each_sample_counts_and_few_are_fetched():
    """Four samples, twice each, back to front the second time; of dear ones one; none in the rank beside loaders."""
    numbers = Numbers()
    found = look(numbers, batch_size=24)
    assert len(found) == 4
    assert numbers.asked == [*numbers.asked[:4], *numbers.asked[3::-1]]
    for index in numbers.asked[:4]:
        other = Numbers()
        other.x[index, 1] += 1e-6
        assert [name for name, each in look(other, batch_size=24).items() if each != found[name]] == [f"sample {index}"]
    beside = Numbers()
    assert look(beside, batch_size=24, num_workers=1) == found
    assert beside.asked == []

    def dear(x):
        time.sleep(0.11)
        return x

    numbers = Numbers(dear)
    assert len(look(numbers)) == 1
    assert len(numbers.asked) == 2


def test_collate_is_asked_for_the_whole_micro_batch(monkeypatch):
    """As in training, with all its samples; where that would take long, not at all."""
    monkeypatch.setattr(same_samples, "_ENOUGH_S", 60.0)  # also on a busy machine
    sizes = []

    def collate(samples):
        sizes.append(len(samples))
        return torch.stack([x for x, _ in samples])

    assert [*look(Numbers(), batch_size=24, collate=collate)][-1] == "the first micro-batch"
    assert sizes == [6, 6]
    with pytest.raises(DataError, match="the first micro-batch of Numbers is another one"):
        look(Numbers(), collate=lambda samples: collate(samples) * float(own.random()))
    sizes.clear()
    monkeypatch.undo()
    slow = Numbers(lambda x: [time.sleep(0.05), x][1])
    assert "the first micro-batch" not in look(slow, batch_size=24, collate=collate)
    assert sizes == []


def test_whole_micro_batches():
    """A data set that hands out micro-batches is asked for one; what is named by its content is not asked at all."""

    class Keyed(Numbers):
        def fetch_keyed(self, indices, *, seed, epoch):
            return self.x[indices] + seed + epoch + (0 if self.change is None else self.change(0))

    [(name, _)] = look(Keyed(), batch_size=24).items()
    assert name.split()[0] == "sample"
    assert len(name.split()) == 5
    with pytest.raises(DataError, match="is another one"):
        look(Keyed(lambda _: float(own.random())))
    arrays = ArrayDataset(torch.zeros(29, 2))
    assert look(arrays) == {}
    assert len(look(arrays, transform=lambda sample: sample[0] + 1)) == 4
    with pytest.raises(DataError, match="of ArrayDataset is another one"):
        look(arrays, transform=lambda sample: sample[0] + own.random())


@dataclass(slots=True)
class Made:
    a: object


class Opaque:
    pass


class Strange(Mapping):
    """A mapping that cannot be gone through, nor made of a dictionary."""

    __len__ = __iter__ = __getitem__ = None


class Image:
    mode, size = "L", (2, 1)

    def __init__(self, content):
        self.content = content

    def tobytes(self):
        return self.content


UNLIKE = [
    (torch.zeros(2), torch.tensor([0.0, -0.0])), (torch.zeros(2), torch.zeros(2, dtype=torch.double)),
    (torch.zeros(2, 3), torch.zeros(3, 2)), (np.zeros(2), np.ones(2)), (np.zeros(2), torch.zeros(2).double()),
    (torch.eye(2).to_sparse(), torch.ones(2, 2).to_sparse()), (torch.zeros(2).bfloat16(), torch.ones(2).bfloat16()),
    (torch.tensor([1j]).conj(), torch.tensor([1j])), (torch.tensor(1), torch.tensor(2)),
    (1, 2), (1, 1.0), (True, 1), ("a", "b"), (b"a", b"b"), (None, 0), ({1, 2}, {1, 3}), ([1, 2], [1, 3]),
    ([1], (1,)), ({"a": 1}, {"b": 1}), ({"a": [1]}, {"a": [2]}), (UserDict(a=1), UserDict(a=2)),
    (UserList([1]), UserList([2])),
    (Made(1), Made(2)), (SimpleNamespace(a=1), SimpleNamespace(a=2)), (Image(b"ab"), Image(b"ac")),
    (np.float32(1), np.float32(2)), (np.array(["a", None], object), np.array(["b", None], object)),
    ("/data/one/7.png", "/data/one/8.png"), ("a text / with a stroke", "another text / with a stroke"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), UNLIKE, ids=range(len(UNLIKE)))
def test_what_differs_differs(one, other):
    """Values, types, shapes and containers count, and are equal to themselves."""
    assert parts_of_sample(one) == parts_of_sample(one)
    assert parts_of_sample(one) != parts_of_sample(other)
    assert parts_of_sample({"deep": [one]}) != parts_of_sample({"deep": [other]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Opaque(), Opaque()),
        (Strange(), Strange()),
        ("/data/one/7.png", "/mnt/7.png"),
        ({"b", "a"}, {"a", "b"}),
        (float("nan"), float("nan")),
    ],
)
def test_what_may_differ_is_equal(one, other):
    """Objects of unknown types, the places of files and the order of sets are no difference."""
    assert parts_of_sample(one) == parts_of_sample(other)
