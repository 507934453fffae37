"""Micro-batches have the same bits whoever fetches them, and are nobody else's memory."""

import gc
import multiprocessing
import random
import tempfile
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from unisono.collectives.placement import place_evenly
from unisono.data.batches import XY
from unisono.data.datasets import ArrayDataset
from unisono.data.loader import Fetcher, Loader, Task, fetch_all
from unisono.data.sampler import ExactSampler
from unisono.errors import ConfigError, DataError

NUM_SAMPLES = 29


class Numbers(Dataset):
    """Sample i is (i as a vector, i)."""

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index


class Noisy(Numbers):
    """A data set that draws from all three libraries itself."""

    def __getitem__(self, index):
        return torch.tensor([torch.rand(()).item(), random.random(), float(np.random.rand())]), index


class Broken(Numbers):
    """Fails at one sample."""

    def __getitem__(self, index):
        if index == 7:
            raise KeyError("the seventh is missing")
        return super().__getitem__(index)


class OwnStream:
    """A transform with a stateful stream of its own: what the promise forbids (the control)."""

    def __init__(self):
        self.stream = random.Random(0)

    def __call__(self, sample):
        return torch.tensor([self.stream.random()]), sample[1]


class Pair:
    """Sample i is a dictionary."""

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return {"image": torch.full((2, 2), index), "label": index, "name": str(index)}


def noise(sample):
    """Replace x by draws from torch, Python and NumPy."""
    x, y = sample
    return torch.tensor([torch.rand(()).item(), random.random(), float(np.random.rand()), x[0].item()]), y


def sum_collate(samples):
    return {"sum": torch.stack([x for x, _ in samples]).sum(0), "ids": [y for _, y in samples]}


def make(dataset, *, rank=0, world_size=1, replicas=4, batch_size=8, num_workers=0, seed=5, shuffle=True, **how):
    sampler = ExactSampler(len(dataset), batch_size, replicas, seed=seed, shuffle=shuffle)
    fetcher = Fetcher(dataset, seed, **how)
    return Loader(sampler, fetcher, place_evenly(replicas, world_size)[rank], num_workers=num_workers)


def epoch(loader, number=0):
    first = number * len(loader) + 1
    return list(loader.micro_batches(first, first + len(loader) - 1))


def by_sample(batches):
    return {int(index): tuple(row.tolist()) for batch in batches for row, index in zip(batch.x, batch.y, strict=True)}


def assert_same(left, right):
    assert len(left) == len(right)
    for ours, theirs in zip(left, right, strict=True):
        assert type(ours) is type(theirs)
        fields = ours.items() if isinstance(ours, dict) else enumerate(ours)
        for key, value in fields:
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, theirs[key])
                assert value.dtype == theirs[key].dtype
            else:
                assert value == theirs[key]


@pytest.mark.parametrize("shuffle", [True, False])
def test_micro_batches_hold_the_sampler_s_samples(shuffle):
    """Replica by replica, step by step: exactly the samples that the sampler names, empty micro-batches left out."""
    loader = make(Numbers(), shuffle=shuffle)
    wanted = [part.tolist() for step in range(1, 9) for part in loader.sampler.micro_batches(step) if len(part)]
    assert [batch.y.tolist() for batch in loader.micro_batches(1, 8)] == wanted
    assert [batch.x[:, 0].tolist() for batch in loader.micro_batches(1, 8)] == wanted
    assert len(loader) == 4


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_fetch_what_they_host_and_together_everything(world_size):
    """Each rank's micro-batches are its replicas' part of those of a world of one."""
    alone = [batch.y.tolist() for batch in epoch(make(Numbers()))]
    shared = [
        [batch.y.tolist() for batch in make(Numbers(), rank=rank, world_size=world_size).micro_batches(step, step)]
        for step in range(1, 5)
        for rank in range(world_size)
    ]
    assert [ids for part in shared for ids in part] == alone


@pytest.mark.parametrize(
    ("dataset", "how"),
    [
        (Numbers(), {}),
        (Numbers(), {"transform": noise}),
        (Noisy(), {}),
        (TensorDataset(torch.arange(58.0).view(29, 2), torch.arange(29)), {}),
        (ArrayDataset(np.arange(29, dtype=np.float64), np.arange(29)), {"collate": sum_collate}),
        (Pair(), {}),
        (Numbers(), {"collate": sum_collate}),
    ],
    ids=["custom", "transform", "noisy", "tensors", "arrays", "dictionaries", "collate"],
)
def test_loader_workers_do_not_change_a_bit(dataset, how):
    """With 0, 1 and 2 fetching processes the batches are equal, random data sets and transforms included."""
    alone = epoch(make(dataset, **how), 1)
    assert len(alone) == 16
    for num_workers in (1, 2):
        assert_same(alone, epoch(make(dataset, num_workers=num_workers, **how), 1))


class Curriculum(Numbers):
    """A data set whose samples change from epoch to epoch."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return torch.full((3,), float(self.epoch)), index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_set_that_asks_for_the_epoch_is_told_it_where_it_is_fetched(num_workers):
    """In loader processes too, from any epoch on and in batches of two epochs; in evaluations it is 0."""
    for number in (0, 3):
        batches = epoch(make(Curriculum(), num_workers=num_workers), number)
        assert {row for batch in batches for row in batch.x.flatten().tolist()} == {float(number)}
    mixed, evaluated = Task(np.array([1, 2]), np.array([5, 6])), Task(-1, np.array([5]))
    found = [*fetch_all(Fetcher(Curriculum(), 0), [mixed, evaluated], num_workers=num_workers)]
    assert [batch.x[:, 0].tolist() for batch in found] == [[1.0, 2.0], [0.0]]


@pytest.mark.parametrize("how", [{"transform": noise}, {}], ids=["transform", "data set"])
def test_augmentation_is_keyed_by_the_sample(how):
    """In another batch, order of fetching, world or process a sample's draws from all three libraries stay the same."""
    dataset = Numbers() if how else Noisy()
    wanted = by_sample(epoch(make(dataset, **how), 2))
    assert len(wanted) == NUM_SAMPLES
    for changes in ({"batch_size": 29, "replicas": 1}, {"batch_size": 5}, {"shuffle": False}, {"num_workers": 2}):
        assert by_sample(epoch(make(dataset, **how, **changes), 2)) == wanted
    shared: dict[int, tuple[float, ...]] = {}
    for rank in (2, 0, 1):
        torch.rand(rank)  # the process-wide streams may stand anywhere
        random.random()
        shared |= by_sample(epoch(make(dataset, rank=rank, world_size=3, num_workers=rank % 2, **how), 2))
    assert shared == wanted


def test_augmentation_differs_between_samples_epochs_and_seeds():
    """Each sample of each epoch of each seed has draws of its own, from each library."""
    first = by_sample(epoch(make(Numbers(), transform=noise)))
    later = by_sample(epoch(make(Numbers(), transform=noise), 1))
    other = by_sample(epoch(make(Numbers(), transform=noise, seed=6)))
    for library in range(3):
        draws = [values[library] for run in (first, later, other) for values in run.values()]
        assert len(set(draws)) == 3 * NUM_SAMPLES


def test_a_stream_of_its_own_is_noticed():
    """The control: a transform that keeps a stream does depend on the batch, so the tests above can fail."""
    left = by_sample(epoch(make(Numbers(), transform=OwnStream()), 0))
    right = by_sample(epoch(make(Numbers(), transform=OwnStream(), shuffle=False), 0))
    assert left != right


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("kind", ["tensors", "arrays", "custom"])
def test_batches_are_fresh_contiguous_tensors(kind, shuffle, num_workers):
    """No micro-batch is a view: it owns exactly its own memory, and writing to it leaves the data alone."""
    x, y = torch.arange(58.0).view(29, 2), torch.arange(29)

    class Views(Numbers):
        def __getitem__(self, index):
            return x[index], y[index]

    dataset = {
        "tensors": TensorDataset(x, y),
        "arrays": ArrayDataset(x.numpy(), y.numpy()),
        "custom": Views(),
    }[kind]
    before = x.clone()
    seen = set()
    batches = epoch(make(dataset, shuffle=shuffle, num_workers=num_workers))
    for batch in batches:
        for tensor in batch:
            assert tensor.is_contiguous()
            assert tensor.untyped_storage().nbytes() == tensor.nbytes or num_workers
            assert tensor.storage_offset() == 0
            seen.add(tensor.data_ptr())
        batch.x.fill_(-1)
    assert len(seen) == 2 * len(batches)
    assert torch.equal(x, before)


def test_pairs_are_named_and_anything_else_is_passed_on():
    """A pair (or a list of two) becomes x and y; dictionaries, named tuples and triples stay as they are."""
    pair = next(make(Numbers()).micro_batches(1, 1))
    assert type(pair) is XY
    assert pair.x is pair[0]
    assert set(next(make(Pair()).micro_batches(1, 1))) == {"image", "label", "name"}
    triple = ArrayDataset(torch.arange(29), torch.arange(29), torch.arange(29))
    assert len(next(make(triple).micro_batches(1, 1))) == 3
    assert not hasattr(next(make(triple).micro_batches(1, 1)), "x")
    lists = make(Numbers(), collate=lambda samples: [1, 2])
    assert next(lists.micro_batches(1, 1)) == XY(1, 2)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(5))


class Counted(Endless):
    def __len__(self):
        return 5


@pytest.mark.parametrize("dataset", [Endless(), Counted(), iter([1, 2]), 5, {1, 2}])
def test_only_map_style_data_is_accepted(dataset):
    """Data without sample numbers is refused, whether or not it has a length, with the reason."""
    with pytest.raises(ConfigError, match="map-style"):
        Fetcher(dataset, 0)


@pytest.mark.parametrize("dataset", [[], TensorDataset(torch.empty(0, 2))])
def test_empty_data_is_refused(dataset):
    """No sample is an error before the first step."""
    with pytest.raises(DataError, match="at least one sample"):
        Fetcher(dataset, 0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_in_the_data_set_reaches_the_caller(num_workers):
    """The data set's own exception comes out, with its words, and no fetching process stays behind."""
    words, before = "", set(multiprocessing.active_children())
    try:
        epoch(make(Broken(), num_workers=num_workers))
    except KeyError as error:  # not pytest.raises: it would keep the traceback, and with it the iterator
        words = str(error)
    gc.collect()
    assert "the seventh is missing" in words
    assert set(multiprocessing.active_children()) <= before


def test_loader_workers_are_gone_after_the_loop_and_after_a_break():
    """Fetching processes end with the loop, whether it ran to its end or was left."""
    before = set(multiprocessing.active_children())  # of other tests
    batches = make(Numbers(), num_workers=2).micro_batches(1, 4)
    next(batches)
    assert len(set(multiprocessing.active_children()) - before) == 2  # the control
    assert len(list(batches)) == 15
    assert set(multiprocessing.active_children()) <= before
    left = make(Numbers(), num_workers=2).micro_batches(1, 4)
    next(left)
    left.close()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("num_workers", [0, 1])
def test_fetching_leaves_no_trace_in_the_process_wide_stream_of_a_take(num_workers):
    """Data without randomness does not move this process's generators."""
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    epoch(make(ArrayDataset(torch.arange(29), torch.arange(29)), num_workers=num_workers))
    assert torch.equal(torch.rand(2), wanted)


@pytest.mark.parametrize("settings", [{"num_workers": -1}, {"prefetch": 0}])
def test_bad_settings_are_refused(settings):
    """Negative numbers of processes and an empty queue are wrong settings."""
    with pytest.raises(ConfigError, match=r"expected (num_workers|prefetch) as a whole number"):
        Loader(ExactSampler(4, 2), Fetcher(Numbers(), 0), range(1), **settings)


def test_a_path_too_long_for_sockets_is_refused(monkeypatch):
    """The longest directory for temporary files that has room for a socket works; one byte more is refused."""
    with tempfile.TemporaryDirectory(prefix="u", dir="/tmp") as short:
        fitting = Path(short) / ("x" * (74 - len(short)))
        fitting.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(fitting))
        tasks = [Task(0, np.array([3, 1], dtype=np.int64))]
        (batch,) = fetch_all(Fetcher(Numbers(), 0), tasks, num_workers=1)
        assert batch.y.tolist() == [3, 1]
        monkeypatch.setattr(tempfile, "tempdir", str(fitting) + "y")
        with pytest.raises(ConfigError, match=r"may have at most 75 bytes, got 76.*TMPDIR=/tmp"):
            next(fetch_all(Fetcher(Numbers(), 0), tasks, num_workers=1))
        with pytest.raises(ConfigError, match="got 76"):
            Loader(ExactSampler(4, 2), Fetcher(Numbers(), 0), range(1), num_workers=1)


def test_arrays_of_different_lengths_are_refused():
    """Fields must have one row per sample."""
    with pytest.raises(DataError, match=r"\[3, 4\]"):
        ArrayDataset(np.zeros(3), np.zeros(4))
    with pytest.raises(DataError, match="common length"):
        ArrayDataset()


def test_memory_mapped_arrays_are_read_without_complaint(tmp_path):
    """A read-only mapped file serves as data, and a batch of it can be written to."""
    np.save(tmp_path / "x.npy", np.arange(29.0))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    (batch,) = ArrayDataset(mapped).fetch_micro_batch(np.array([4, 2]))
    assert batch.tolist() == [4.0, 2.0]
    batch.fill_(0)
    assert mapped[4] == 4.0


def test_array_data_set_items_are_rows():
    """Sample i is the i-th row of each array."""
    dataset = ArrayDataset(np.arange(6).reshape(3, 2), [7, 8, 9])
    x, y = dataset[1]
    assert (x.tolist(), int(y), len(dataset)) == ([2, 3], 8, 3)


def test_tasks_of_evaluation_are_fetched_in_order():
    """fetch_all answers tasks one by one, in their order."""
    tasks = [Task(-1, np.array([3, 1])), Task(-1, np.array([28]))]
    for num_workers in (0, 1):
        answers = [batch.y.tolist() for batch in fetch_all(Fetcher(Numbers(), 0), tasks, num_workers=num_workers)]
        assert answers == [[3, 1], [28]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_sample_that_failed_is_named(num_workers):
    """An error of the data set or the transform says which sample of which epoch it was."""
    fetcher = Fetcher([1, 2, 0, 4], 0, transform=lambda value: 1 / value)
    with pytest.raises(ZeroDivisionError) as caught:
        list(fetch_all(fetcher, [Task(5, np.array([1, 2]))], num_workers=num_workers))
    said = "".join(traceback.format_exception(caught.value))
    assert said.count("while fetching sample 2 of list, epoch 5") == 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_of_unlike_shapes_are_named(num_workers):
    """What torch says of shapes is followed by which samples they are, and what to write."""
    fetcher = Fetcher([torch.zeros(2), torch.zeros(3), torch.zeros(2)], 0)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
        list(fetch_all(fetcher, [Task(5, np.array([1, 2]))], num_workers=num_workers))
    said = "".join(traceback.format_exception(caught.value))
    assert said.count("while putting samples [1, 2] together. Hint: a sample is made of") == 1
    assert "collate= pads where shapes differ" in said


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_micro_batch_by_itself(num_workers):
    """Any replica's, here or where the others are fetched."""
    loader = Loader(
        ExactSampler(16, 8, replicas=4), Fetcher(ArrayDataset(torch.arange(16.0)), 0), range(2), num_workers=num_workers
    )
    found = [loader.micro_batch(1, 3, is_apart=is_apart) for is_apart in (False, True)]
    assert len({str(each) for each in found}) == 1


def test_data_sets_with_a_take_of_another_meaning():
    """Arrays, tensors and others that have their own ``take`` are read sample by sample."""

    class Head(list):
        def take(self, count):
            raise AssertionError("this means the first samples")

    for data in (Head([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0])):
        assert Fetcher(data, 0)[Task(0, np.array([2, 0]))].tolist() == [3.0, 1.0]


def test_the_fingerprint_of_arrays(monkeypatch):
    """It depends on every byte, dtype and shape; of very large arrays on a spread of rows."""
    values = np.arange(6000, dtype=np.float32).reshape(1000, 6)
    plain = ArrayDataset(values).fingerprint
    assert plain == ArrayDataset(torch.from_numpy(values.copy())).fingerprint
    others = [values.astype(np.float64), values.reshape(2000, 3), values[::-1].copy(), values + np.float32(1e-3)]
    changed = values.copy()
    changed[997, 5] += 1
    prints = {ArrayDataset(array).fingerprint for array in (*others, changed)} | {
        ArrayDataset(values, values).fingerprint, plain
    }  # fmt: skip
    assert len(prints) == 7
    monkeypatch.setattr("unisono.data.datasets._HASHED_BLOCK_BYTES", 100)
    assert ArrayDataset(values).fingerprint == plain
    monkeypatch.setattr("unisono.data.datasets._HASHED_WHOLE_BYTES", 8000)
    sampled = ArrayDataset(values).fingerprint
    assert sampled not in prints
    changed[:] = values
    changed[1] += 1
    assert ArrayDataset(changed).fingerprint == sampled  # row 1 is not among every fourth
    changed[4] += 1
    assert ArrayDataset(changed).fingerprint != sampled
