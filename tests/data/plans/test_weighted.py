"""Samples come as often as their weights say, at any place by its number."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unisono.data.loader import Fetcher, Task, sampler_of
from unisono.data.plans.plan import HasEpochs, Order, Plan
from unisono.data.plans.weighted import Weighted, _whole
from unisono.data.sampler import ExactSampler
from unisono.data.sets.augment import Augment
from unisono.data.sets.pictures import Pictures
from unisono.errors import ConfigError, DataError

weights = st.lists(st.floats(0, 1e300) | st.integers(0, 2**40).map(float), min_size=1, max_size=20).filter(any)


@given(weights)
def test_weights_become_whole_numbers(values):
    """To one part in 2**32 of the largest, and none of them nothing, unless it was; whole ones as they are."""
    whole = _whole(np.array(values))
    assert sum(whole.tolist()) <= 2**62
    assert ((whole > 0) == (np.array(values) > 0)).all()
    largest = Fraction(max(values))
    for value, number in zip(values, whole.tolist(), strict=True):
        assert abs(Fraction(value) / largest - Fraction(number, int(whole.max()))) <= Fraction(1, 2**32)
    assert _whole(np.array([3, 0, 7])).tolist() == _whole(np.array([3.0, 0.0, 7.0])).tolist() == [3, 0, 7]


def test_as_often_as_the_weights_say():
    """Within five standard deviations; a weight of zero never; each place by itself."""
    order = Weighted([1, 0, 2, 5], num_samples=40_000).order(range(4), seed=1, shuffle=True)
    found = order.at(2, 0, 40_000)
    counts = Counter(found.tolist())
    assert counts[1] == 0
    for sample, share in ((0, 1 / 8), (2, 2 / 8), (3, 5 / 8)):
        assert abs(counts[sample] - 40_000 * share) < 5 * (40_000 * share * (1 - share)) ** 0.5
    assert order.at(2, 1234, 1235)[0] == found[1234]
    assert (order.at(3, 0, 100) != found[:100]).any()
    assert isinstance(order, Order)
    assert isinstance(order, HasEpochs)
    assert isinstance(Weighted([1]), Plan)


def test_epochs_are_as_long_as_asked_for():
    """And each draw has a number of its own, so that two of one sample are changed in two ways."""
    order = Weighted(torch.tensor([0.5, 0.25]), num_samples=10).order("ab", seed=0, shuffle=True)
    sampler = ExactSampler(order.num_samples, 4, order=order)
    assert [len(sampler.batch(step)) for step in range(1, 7)] == [4, 4, 2, 4, 4, 2]
    assert np.concatenate([sampler.epochs(step) for step in range(1, 7)]).tolist() == list(range(20))


def test_a_picture_that_comes_twice_is_changed_in_two_ways():
    """Each draw is keyed by itself, also where a data set changes its samples at once; else as one by one."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (3, 8, 8), dtype=np.uint8)
    pictures = Pictures(images, np.arange(3), augment=Augment(shift=3))
    sampler = sampler_of(pictures, 30, 1, seed=0, shuffle=True, plan=Weighted([0, 1, 0], num_samples=30))
    task = Task(sampler.epochs(1), sampler.batch(1))
    x, y = Fetcher(pictures, 0)[task]
    assert (tuple(x.shape), y.tolist()) == ((30, 1, 8, 8), [1] * 30)
    assert len({tuple(one.flatten().tolist()) for one in x}) > 10
    alone = [pictures.fetch_keyed(np.array([1]), seed=0, epoch=place)[0] for place in range(30)]
    assert torch.equal(x, torch.cat(alone))
    with pytest.raises(ConfigError, match=r"expected plan= with a method order\(\).* got list"):
        sampler_of(pictures, 30, 1, seed=0, shuffle=True, plan=[1, 2, 3])


def test_balanced_classes():
    """Each class as often, however many samples it has."""
    classes = ["a"] * 900 + ["b"] * 90 + ["c"] * 10
    found = Weighted.balanced(classes, num_samples=30_000).order(classes, seed=0, shuffle=True).at(0, 0, 30_000)
    assert all(abs(count - 10_000) < 500 for count in Counter(np.array(classes)[found].tolist()).values())


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ([1.0, -2.0], r"expected weights that are 0 or more, got -2\.0 for sample 1; 1 are so\. Hint: 0 leaves"),
        ([float("nan"), 1.0], "got nan for sample 0"),
        ([1.0, float("inf")], "got inf for sample 1"),
        ([0, 0], "expected a weight above 0, got 2 weights that are all 0. Hint: without plan="),
        ([], "expected weights as numbers"),
        ([[1, 2]], r"got shape \(1, 2\)"),
        (["a"], "expected weights as numbers"),
    ],
)
def test_bad_weights(given, match):
    """Before the first step, named."""
    with pytest.raises(DataError, match=match):
        Weighted(given)


def test_weights_of_another_data_set():
    """Not as many; and what is drawn is never in the data set's order."""
    with pytest.raises(DataError, match="expected 3 weights, one per sample, got 2"):
        Weighted([1, 2]).order(range(3), seed=0, shuffle=True)
    with pytest.raises(DataError, match="expected shuffle=True beside Weighted"):
        Weighted([1, 2]).order(range(2), seed=0, shuffle=False)


def test_weights_that_change_with_the_epoch():
    """Those of each epoch, in any order asked for; later ones have the last; the score tells them apart."""
    plan = Weighted(lambda epoch: np.eye(4)[epoch], epochs=3, num_samples=5)
    order = plan.order(range(4), seed=0, shuffle=True)
    for epoch in (2, 0, 1, 7):
        assert order.at(epoch, 0, 5).tolist() == [min(epoch, 2)] * 5
    other = Weighted(lambda epoch: np.eye(4)[min(epoch, 1)], epochs=3, num_samples=5).order(
        range(4), seed=0, shuffle=True
    )
    assert order.score["weights"].endswith(" of 3 epochs")
    assert order.score != other.score
    constant = Weighted(lambda _: [1, 0, 2, 5], epochs=1).order(range(4), seed=0, shuffle=True)
    plain = Weighted([1, 0, 2, 5]).order(range(4), seed=0, shuffle=True)
    assert (constant.score, constant.at(3, 0, 9).tolist()) == (plain.score, plain.at(3, 0, 9).tolist())


def test_weights_that_are_no_function_of_the_epoch():
    """What says something else when its epoch has come is refused; so is a function without an end."""
    learnt = [1.0, 1.0]
    order = Weighted(lambda epoch: learnt, epochs=2).order(range(2), seed=0, shuffle=True)
    order.at(0, 0, 2)
    learnt[0] = 2.0
    with pytest.raises(DataError, match="the weights of epoch 1 are others than when the plan was made"):
        order.at(1, 0, 2)
    for wrong in (lambda: Weighted(lambda epoch: [1.0]), lambda: Weighted([1.0], epochs=2)):
        with pytest.raises(ConfigError, match=r"expected epochs= beside weights that are a function"):
            wrong()
    with pytest.raises(DataError, match="expected 3 weights, one per sample, got 2"):
        Weighted(lambda epoch: [1.0] * (3 - epoch), epochs=2).order(range(3), seed=0, shuffle=True)
