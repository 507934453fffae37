"""Batches by length: nothing lost, nothing twice, the same for every world."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.collectives.placement import cut
from unisono.data.lengths import deal, evaluation_order
from unisono.data.sampler import ExactSampler
from unisono.errors import ConfigError

sizes = st.integers(1, 400)


def lengths_of(num: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([num, seed]).lognormal(5.4, 0.7, num).astype(np.int64) + 1


def sampler(num: int, batch: int, replicas: int = 4, pool: int = 5, **more) -> ExactSampler:
    return ExactSampler(num, batch, replicas, lengths=lengths_of(num), length_pool=pool, **more)


@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(1, 60), st.integers(1, 9), st.integers(0, 6), st.booleans())
def test_every_sample_comes_exactly_once_per_epoch(num, batch, replicas, pool, shuffle):
    """Over all steps of an epoch, whole batches and micro-batches alike, and only the last batch is short."""
    samples = sampler(num, batch, replicas, pool, shuffle=shuffle)
    for epoch in range(2):
        steps = range(epoch * samples.steps_per_epoch + 1, (epoch + 1) * samples.steps_per_epoch + 1)
        batches = [samples.batch(step) for step in steps]
        assert sorted(np.concatenate(batches)) == list(range(num))
        assert [len(each) for each in batches[:-1]] == [batch] * (len(batches) - 1)
        for step, whole in zip(steps, batches, strict=True):
            parts = samples.micro_batches(step)
            assert np.array_equal(np.concatenate(parts), whole)
            assert [len(part) for part in parts] == [len(part) for part in cut(len(whole), replicas)]


def test_a_step_is_known_from_its_number():
    """Any order of asking gives the same batches: resuming needs the step alone. Epochs and seeds differ."""
    first, second = sampler(1003, 32), sampler(1003, 32)
    forward = {step: first.batch(step).tolist() for step in range(1, 65)}
    assert {step: second.batch(step).tolist() for step in range(64, 0, -1)} == forward
    assert forward[1] != forward[33]
    assert sampler(1003, 32, seed=1).batch(1).tolist() != forward[1]


def test_golden_order():
    """These batches never change: runs stay comparable between versions. Two full pools and a half one."""
    samples = ExactSampler(20, 2, 2, seed=7, lengths=np.arange(1, 21), length_pool=4)
    assert [samples.batch(step).tolist() for step in range(1, 21)] == [
        *([14, 11], [19, 18], [16, 15], [5, 0], [3, 2], [17, 12], [6, 4], [10, 7], [8, 1], [13, 9]),
        *([5, 4], [2, 1], [18, 15], [14, 12], [3, 0], [7, 6], [9, 8], [16, 11], [13, 10], [19, 17]),
    ]


def test_pools_need_an_order_to_sort_and_lengths_to_sort_by():
    """Unshuffled data keep their batches, data without lengths their random ones; two batches are already a pool."""
    kept = ExactSampler(20, 4, lengths=np.arange(20), length_pool=5, shuffle=False)
    assert [sorted(kept.batch(step)) for step in range(1, 6)] == [list(part) for part in cut(20, 5)]
    for more in ({"length_pool": 5}, {"length_pool": 1, "lengths": np.ones(20, dtype=np.int64)}):
        assert np.array_equal(ExactSampler(20, 4, **more).batch(2), ExactSampler(20, 4).batch(2))
    two = ExactSampler(20, 10, lengths=np.arange(20), length_pool=2)
    assert {min(two.batch(1)), min(two.batch(2))} == {0, 10}


def test_the_number_of_replicas_does_not_change_a_batch():
    """Replicas share a batch out; which samples it holds is decided without them."""
    for step in range(1, 20):
        assert sorted(sampler(1003, 32, 3).batch(step)) == sorted(sampler(1003, 32, 8).batch(step))


def test_batches_hold_similar_lengths():
    """Sorting pools takes most of the padding away; the control without pools has it."""
    lengths = lengths_of(4000)

    def padding(pool: int) -> float:
        samples = sampler(4000, 32, 1, pool)
        batches = [lengths[samples.batch(step)] for step in range(1, samples.steps_per_epoch + 1)]
        return sum(len(each) * each.max() for each in batches) / lengths.sum()

    assert padding(50) < 1.3
    assert padding(0) > 2


def test_batches_do_not_come_sorted():
    """Within a pool the batches change places, so that training sees no ramp of lengths."""
    lengths, samples = lengths_of(3200), sampler(3200, 32, 1, 50)
    means = [lengths[samples.batch(step)].mean() for step in range(1, 51)]
    assert abs(np.corrcoef(means, range(50))[0, 1]) < 0.5


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 99))
def test_dealing_keeps_the_batch_and_its_sizes(num, replicas, seed):
    """A permutation, whose contiguous parts are what dealing there and back gives."""
    lengths = lengths_of(num, seed)
    assert sorted(deal(np.arange(num), lengths, replicas)) == list(range(num))


def test_replicas_get_about_equal_work():
    """Totals differ by little where a random cut differs by much."""
    lengths = lengths_of(128)

    def imbalance(batch: np.ndarray) -> float:
        totals = [lengths[batch[part.start : part.stop]].sum() for part in cut(128, 4)]
        return max(totals) / (sum(totals) / 4)

    assert imbalance(deal(np.arange(128), lengths, 4)) < 1.05 < imbalance(np.arange(128))


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 60))
def test_evaluation_sees_every_sample_once(num, batch):
    """A permutation, whatever the sizes."""
    assert sorted(evaluation_order(lengths_of(num), batch)) == list(range(num))


def test_evaluation_is_shared_out_evenly():
    """Contiguous runs of batches cost about the same for 2 and 3 ranks; sorted order would not."""
    lengths = lengths_of(8000)
    order = evaluation_order(lengths, 100)
    for ranks in (2, 3):
        costs = [lengths[order[run.start * 100 : run.stop * 100]].sum() for run in cut(80, ranks)]
        assert max(costs) < 1.3 * min(costs)
    ordered = np.sort(lengths)
    assert ordered[4000:].sum() > 2 * ordered[:4000].sum()
    batches = [lengths[order[start : start + 100]] for start in range(0, 8000, 100)]
    assert sum(each.max() for each in batches) * 100 < 1.2 * lengths.sum()


def test_wrong_lengths_are_refused():
    """One length per sample, and no pools of fewer than none."""
    for wrong, got in (
        ({"lengths": np.ones(9, dtype=np.int64), "length_pool": 2}, "expected 10 lengths, one per sample, got 9."),
        ({"length_pool": -1}, "expected length_pool as a whole number of batches from 0 to 1,000,000, got -1."),
    ):
        with pytest.raises(ConfigError) as caught:
            ExactSampler(10, 2, **wrong)
        assert str(caught.value) == got
