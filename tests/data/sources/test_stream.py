"""A stream is read in windows, and found again at any item, by its own state or by reading again."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from unisono.data.sources.stream import Place, Reader, Stream
from unisono.errors import ConfigError, DataError


def items():
    for number in range(23):
        yield number, random.random(), float(np.random.rand()), float(torch.rand(1))


class Stateful:
    """As data sets that keep their place have it; `read` is what was read."""

    def __init__(self, length=23):
        self.length, self.at, self.read, self.epochs = length, 0, [], []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            self.read.append(self.at - 1)
            yield self.at - 1
        self.at = 0


def read(reader, most=4):
    """Return all that is left, and the place after each batch."""
    values, places = [], []
    while taken := reader.take(most).values:
        values += taken
        places.append(reader.place())
    assert reader.is_at_end
    return values, places


def test_windows_are_shuffled_and_random_items_are_keyed():
    """Each item once, in its window; the same for the same key, whatever was drawn before."""
    plain, _ = read(Reader(Stream(items), Place(), seed=3))
    torch.rand(5)
    again, _ = read(Reader(Stream(items), Place(), seed=3))
    assert again == plain
    assert [item[0] for item in plain] == list(range(23))
    mixed, _ = read(Reader(Stream(items, window=10), Place(), seed=3))
    numbers = [item[0] for item in mixed]
    assert [sorted(numbers[first : first + 10]) for first in (0, 10, 20)] == [
        list(range(10)), list(range(10, 20)), [20, 21, 22],
    ]  # fmt: skip
    assert numbers[:10] != sorted(numbers[:10])
    assert sorted(mixed) == sorted(plain)
    others = [read(Reader(Stream(items, window=10), place, seed=seed))[0] for place, seed in (
        (Place(passes=1), 3), (Place(), 4),
    )]  # fmt: skip
    assert all(other != mixed for other in others)


@pytest.mark.parametrize("window", [0, 1, 5, 7, 100])
@pytest.mark.parametrize("make", [lambda: items, Stateful], ids=["function", "stateful"])
def test_found_again_at_any_batch(window, make):
    """What follows is what would have followed, with the same chain."""
    values, places = read(Reader(Stream(make(), window=window), Place(passes=2), seed=1))
    for number, place in enumerate(places):
        found, after = read(Reader(Stream(make(), window=window), place, seed=1))
        assert found == values[4 * (number + 1) :]
        assert [one.chain for one in after] == [one.chain for one in places[number + 1 :]]


@pytest.mark.parametrize("window", [0, 5])
def test_a_source_that_knows_its_place_reads_little_again(window):
    """At least 32 items, to be compared, and not a window more; without its state, all."""
    _, places = read(Reader(Stream(Stateful(99), window=window), Place(passes=4), seed=0))
    source = Stateful(99)
    reader = Reader(Stream(source, window=window), places[14], seed=0)  # behind 60 items
    begins = 25 if window else 28
    assert (source.read, source.epochs, reader.num_skipped) == (list(range(begins, 60)), [4], 60 - begins)
    source = Stateful(99)
    assert Reader(Stream(source, window=window, use_state=False), places[14], seed=0).num_skipped == 60
    assert source.read == list(range(60))


class Lossy(Stateful):
    """Shuffles in a buffer that its state does not hold."""

    def __iter__(self):
        generator, buffer = random.Random(7), []
        for item in super().__iter__():
            buffer.append(item)
            if len(buffer) > 10:
                yield buffer.pop(generator.randrange(10))
        yield from buffer


def test_a_state_that_does_not_lead_back_is_found_out():
    """Not gone on from; with `use_state=False` all is read again, and goes on as it would have."""
    values, places = read(Reader(Stream(Lossy(99)), Place(), seed=0))
    with pytest.raises(DataError, match=r"holds other items among the first 60.*Stream\(\.\.\., use_state=False\)"):
        Reader(Stream(Lossy(99)), places[14], seed=0)
    assert read(Reader(Stream(Lossy(99), use_state=False), places[14], seed=0))[0] == values[60:]


def changed(at):
    def others():
        yield from (item if item[0] != at else (item[0], "changed") for item in items())

    return others


@pytest.mark.parametrize("window", [0, 5])
def test_a_stream_that_has_changed_is_found_out(window):
    """Where what was consumed differs, or is no longer there; the control differs behind it."""
    _, places = read(Reader(Stream(items, window=window), Place(), seed=0))
    with pytest.raises(DataError, match="holds other items among the first 12 of pass 0 than those that were consumed"):
        Reader(Stream(changed(7), window=window), places[2], seed=0)
    with pytest.raises(DataError, match="ends after 2 items of pass 0, of which 12 were consumed before"):
        Reader(Stream(lambda: iter([1, 2])), places[2], seed=0)
    Reader(Stream(changed(17), window=window), places[2], seed=0)


def test_a_stream_that_has_changed_behind_its_own_state():
    """What is read again is compared."""
    _, places = read(Reader(Stream(Stateful(99), window=5), Place(), seed=0))

    class Other(Stateful):
        def __iter__(self):
            return (100 + number for number in super().__iter__())

    with pytest.raises(DataError, match="holds other items among the first 60"):
        Reader(Stream(Other(99), window=5), places[14], seed=0)


class Split:
    _distributed = object()

    def __iter__(self):
        return iter([1])


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (items(), r"expected a stream that can be read again, got generator.*Stream\(items\), not Stream\(items\(\)\)"),
        (iter([1]), "which can be read once"),
        ("a.txt", "expected a stream of items, got str"),
        ({1: 2}, "expected a stream of items, got dict"),
        (5, "expected a stream of items, got int"),
        (DataLoader([1, 2]), r"expected a stream of single items, got a DataLoader. Hint: pass its \.dataset"),
        (Split(), "the Split is split by rank.*leave split_dataset_by_node out"),
    ],
)
def test_what_is_no_stream(source, match):
    """With what to pass instead."""
    with pytest.raises(ConfigError, match=match):
        Stream(source)


def test_names():
    """What the score says."""
    assert Stream(items).name == "items"
    assert Stream(Stateful()).name == "Stateful"
    with pytest.raises(ConfigError, match="expected window as a whole number of items from 0"):
        Stream(items, window=-1)


def test_a_source_that_fails_says_where():
    """The error is the source's own; a note says how much of which pass was read before."""

    def broken():
        yield from range(7)
        raise OSError("the server has gone")

    reader = Reader(Stream(broken, window=5), Place(), seed=0)
    reader.take(5)
    with pytest.raises(OSError, match="has gone") as caught:
        reader.take(5)
    assert caught.value.__notes__ == ["in the stream, after 7 items of pass 0"]
