"""Every period holds exactly what the weights say, and each data set is gone through pass by pass."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.data.datasets import ArrayDataset
from unisono.data.plans.mixture import Mixture, counts_of
from unisono.data.plans.windows import Windows
from unisono.data.sampler import ExactSampler
from unisono.data.sets.augment import Augment
from unisono.data.sets.pictures import Pictures
from unisono.errors import ConfigError, DataError


class Shelf(list):
    """A data set with windows of its own."""

    plan = Windows([10, 20, 30], 2)


AUGMENTED = Pictures(np.zeros((2, 4, 4), np.uint8), np.zeros(2, np.int64), augment=Augment(flip=True))


def test_counts():
    """The smallest period of at least 256 that is exact, else 10,000 by largest remainders."""
    assert counts_of([0.7, 0.3]) == [182, 78]
    assert counts_of([3, 1]) == [192, 64]
    assert counts_of([1, 1, 1]) == [86, 86, 86]
    assert counts_of([123_457, 987_654]) == [1111, 8889]
    assert counts_of([2**0.5, 1, 3**0.5]) == [3411, 2412, 4177]
    assert counts_of([0.9999, 0.0001]) == [9999, 1]
    with pytest.raises(DataError, match="each gets one of 10,000 samples, got 1e-06 beside 1"):
        counts_of([1.0, 1e-6])


@settings(max_examples=40)
@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=5).filter(lambda w: max(w) / min(w) < 1e3))
def test_counts_are_in_proportion(weights):
    """Within one place of the exact share."""
    counts = counts_of(weights)
    for weight, count in zip(weights, counts, strict=True):
        assert abs(count - weight / sum(weights) * sum(counts)) <= 1.0001
    assert 256 <= sum(counts) <= 10_000


def sources():
    return [list(range(7)), Shelf(range(60)), ArrayDataset(torch.arange(33))]


@pytest.mark.parametrize("shuffle", [True, False])
def test_against_one_that_plays_it(shuffle):
    """Four epochs, place by place: exact counts a period, samples of each source once a pass, in its own order."""
    mixed = Mixture(list(zip(sources(), (2, 1, 1), strict=True)), num_samples=150)
    order = mixed.order(mixed, seed=5, shuffle=shuffle)
    found = np.concatenate([order.at(epoch, 0, 150) for epoch in range(8)])
    passes = np.concatenate([order.epochs_at(epoch, 0, 150) for epoch in range(8)])
    whose = np.searchsorted([7, 67, 100], found, side="right")
    for first in range(0, 1200 - 255, 256):
        assert Counter(whose[first : first + 256].tolist()) == {0: 128, 1: 64, 2: 64}
    lengths, starts = (7, 60, 33), (0, 7, 67)
    for number, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        mine, of_pass = found[whose == number] - start, passes[whose == number]
        assert of_pass.tolist() == [turn // length for turn in range(len(mine))]
        for one in range(len(mine) // length - 1):
            assert sorted(mine[of_pass == one].tolist()) == list(range(length))
    if not shuffle:
        assert found[:10].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]


def test_any_place_alone():
    """A place of a late epoch, asked for first, is what a whole epoch says."""
    make = lambda: Mixture({range(7): 1, range(100, 133): 2})  # noqa: E731
    mixed = make()
    assert len(mixed) == 40
    whole = mixed.order(mixed, seed=0, shuffle=True).at(31, 0, 40)
    alone = make().order(mixed, seed=0, shuffle=True)
    assert [int(alone.at(31, place, place + 1)[0]) for place in range(40)] == whole.tolist()
    sampler = ExactSampler(40, 16, order=make().order(mixed, seed=0, shuffle=True))
    assert sampler.batch(3 * 31 + 2).tolist() == whole[16:32].tolist()
    assert len(sampler.epochs(3 * 31 + 3)) == 8


def test_samples_and_score():
    """Numbered through; the score tells data sets, counts and their orders."""
    mixed = Mixture(list(zip(sources(), (2, 1, 1), strict=True)))
    assert [mixed[0], mixed[7], mixed[-1][0].item()] == [0, 0, 32]
    with pytest.raises(IndexError):
        mixed[100]
    score = mixed.order(mixed, seed=0, shuffle=True).score
    assert score["counts"] == [128, 64, 64]
    assert [one["order"] for one in score["orders"]] == ["permuted", "windows", "permuted"]
    assert [one["num_samples"] for one in mixed.fingerprint] == [7, 60, 33]
    assert mixed.fingerprint[2]["fingerprint"] is not None


def test_a_mixture_within_a_mixture():
    """Passes are those of the data set at the bottom."""
    inner = Mixture([([1, 2], 1), ([3] * 50, 1)])
    order = Mixture([(inner, 1)]).order(None, seed=0, shuffle=True)
    samples, passes = order.at(0, 0, 52), order.epochs_at(0, 0, 52)
    assert passes[samples < 2].max() > 5
    assert passes[samples >= 2].max() == 0


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({}, ConfigError, "expected data sets with weights"),
        ([[1, 2, 3]], ConfigError, "expected data sets with weights, got list"),
        ([([1], -1)], DataError, "expected a weight above 0 for each data set, got -1 for number 0"),
        ([([1], 1), ([2], 0)], DataError, "got 0 for number 1"),
        ([([1], float("nan"))], DataError, "got nan"),
        ([([1], "much")], DataError, "got 'much'"),
        ([([], 1)], DataError, "expected at least one sample"),
        ([(iter([1]), 1)], ConfigError, "expected a map-style data set"),
        ([(AUGMENTED, 1)], ConfigError, "a Pictures changes its"),
    ],
)
def test_what_is_refused(given, error, match):
    """When it is made."""
    with pytest.raises(error, match=match):
        Mixture(given)
