"""Shards change places, samples change places within a window, and each comes once an epoch."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.data.plans.plan import Order, Plan
from unisono.data.plans.windows import WindowOrder, Windows
from unisono.data.sampler import ExactSampler, permute
from unisono.determinism.seeding import mix
from unisono.errors import ConfigError, DataError

counts = st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any)
seeds = st.integers(-(2**63), 2**63 - 1)


def played(counts, window, seed, epoch):
    """Return an epoch's order, written down as it is told: no arithmetic on places."""
    names = list(itertools.accumulate(counts, initial=0))
    samples = [list(range(first, last)) for first, last in itertools.pairwise(names)]
    filled = [shard for shard in samples if shard]
    places = permute(np.arange(len(filled)), len(filled), mix(seed, "shards", epoch))
    turned = [filled[place] for place in places]
    order = []
    for number, first in enumerate(range(0, len(turned), window)):
        inside = [sample for shard in turned[first : first + window] for sample in shard]
        order += [inside[at] for at in permute(np.arange(len(inside)), len(inside), mix(seed, "window", epoch, number))]
    return order


@settings(max_examples=50)
@given(counts, st.integers(1, 10), seeds, st.integers(0, 3))
def test_the_order_is_the_one_that_is_told(counts, window, seed, epoch):
    """Against shards and windows made one by one; each sample once; any stretch alone is that stretch of the whole."""
    order = WindowOrder(counts, window, seed=seed, shuffle=True)
    expected = played(counts, window, seed, epoch)
    assert sorted(expected) == list(range(sum(counts)))
    assert order.at(epoch, 0, order.num_samples).tolist() == expected
    fresh = WindowOrder(counts, window, seed=seed, shuffle=True)
    assert [fresh.at(epoch, place, place + 1)[0] for place in range(len(expected))] == expected


@settings(max_examples=12)
@given(counts, st.integers(1, 4), st.integers(1, 7))
def test_batches_of_an_epoch_hold_each_sample_once(counts, window, batch_size):
    """Cut by the sampler, at any step first, and in epochs that differ."""
    sampler = ExactSampler(sum(counts), batch_size, order=WindowOrder(counts, window, seed=3, shuffle=True))
    steps = range(1, 2 * sampler.steps_per_epoch + 1)
    batches = {step: sampler.batch(step).tolist() for step in reversed(steps)}
    for epoch in range(2):
        first = epoch * sampler.steps_per_epoch + 1
        together = [one for step in range(first, first + sampler.steps_per_epoch) for one in batches[step]]
        assert together == played(counts, window, 3, epoch)


def test_only_a_window_is_looked_at_at_once():
    """Forty shards of ten, three at a time: thirty places in a row, from a window's start, come from three shards."""
    order = WindowOrder([10] * 40, 3, seed=0, shuffle=True).at(0, 0, 400)
    shards = [set((order[first : first + 30] // 10).tolist()) for first in range(0, 400, 30)]
    assert [len(one) for one in shards] == [3] * 13 + [1]
    assert set.union(*shards) == set(range(40))
    assert order[:30].tolist() != sorted(order[:30].tolist())


def test_the_order_depends_on_seed_and_epoch_and_window():
    """The control of all equalities here: other keys, other orders; not shuffled, the shards as they lie."""
    made = [
        WindowOrder([20] * 5, window, seed=seed, shuffle=True).at(epoch, 0, 100).tolist()
        for window, seed, epoch in [(2, 0, 0), (2, 0, 1), (2, 1, 0), (3, 0, 0)]
    ]
    assert len({tuple(one) for one in made}) == 4
    assert WindowOrder([20] * 5, 2, seed=0, shuffle=False).at(7, 10, 13).tolist() == [10, 11, 12]


def test_windows_are_a_plan_and_refuse_nothing_to_shuffle():
    """What a data set has as ``plan``."""
    plan = Windows([3, 4], 2)
    order = plan.order(None, seed=5, shuffle=True)
    assert isinstance(plan, Plan)
    assert isinstance(order, Order)
    assert (order.num_samples, order.score) == (7, {"order": "windows", "window": 2})
    with pytest.raises(ConfigError, match="expected window as a whole number"):
        Windows([3], 0)
    with pytest.raises(DataError, match="2 shards without any"):
        WindowOrder([0, 0], 1, seed=0, shuffle=True)
