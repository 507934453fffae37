"""Every sample exactly once per epoch, in an order that only seed and epoch decide."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unisono.collectives.placement import cut
from unisono.data.plans.batch_schedule import LAST
from unisono.data.sampler import ExactSampler, permute
from unisono.determinism.seeding import mix
from unisono.errors import ConfigError, DataError

keys = st.integers(0, 2**63 - 1)


def permutation(num_samples: int, key: int) -> list[int]:
    return permute(np.arange(num_samples), num_samples, key).tolist()


def epoch(sampler: ExactSampler, number: int) -> list[int]:
    first = number * sampler.steps_per_epoch + 1
    steps = range(first, first + sampler.steps_per_epoch)
    return [int(index) for step in steps for index in sampler.batch(step)]


@settings(max_examples=60)
@given(st.integers(1, 2000), keys)
def test_permute_is_a_bijection(num_samples, key):
    """Every sample has exactly one position."""
    assert sorted(permutation(num_samples, key)) == list(range(num_samples))


@pytest.mark.parametrize("num_samples", [1, 2, 3, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1999, 2000])
def test_permute_is_a_bijection_around_powers_of_two(num_samples):
    """Sizes at which the width of the network changes lose nothing."""
    assert sorted(permutation(num_samples, 12345)) == list(range(num_samples))


@given(st.integers(2, 2000), keys, st.data())
@settings(max_examples=30)
def test_permute_needs_no_neighbours(num_samples, key, data):
    """One position asked for alone goes where it goes in the whole."""
    place = data.draw(st.integers(0, num_samples - 1))
    assert permute(np.array([place]), num_samples, key)[0] == permutation(num_samples, key)[place]


GOLDEN_PERMUTATIONS = {
    16: [2, 14, 15, 13, 3, 5, 1, 6, 10, 12, 7, 0, 9, 4, 11, 8],
    33: [
        *(5, 18, 25, 29, 19, 4, 22, 2, 6, 12, 17, 9, 14, 26, 21, 32, 0),
        *(1, 16, 3, 10, 31, 15, 24, 28, 23, 8, 20, 7, 13, 30, 27, 11),
    ],
}


@pytest.mark.parametrize("num_samples", GOLDEN_PERMUTATIONS)
def test_golden_permutations(num_samples):
    """The network is as wide as the next power of two, no wider: a power of two itself, and one more."""
    assert permutation(num_samples, 12345) == GOLDEN_PERMUTATIONS[num_samples]


def test_every_bit_of_the_key_counts():
    """No two of the keys that differ in one of 63 bits give one order."""
    orders = {tuple(permutation(40, key)) for key in [5, *(5 ^ (1 << bit) for bit in range(63))]}
    assert len(orders) == 64


def test_positions_are_roughly_uniform():
    """Over many keys each sample is found at each position about equally often (chi-square, 81 degrees)."""
    num_keys, counts = 2500, np.zeros((10, 10))
    for key in range(num_keys):
        counts[np.arange(10), permute(np.arange(10), 10, mix(key, "order", 0))] += 1
    expected = num_keys / 10
    assert ((counts - expected) ** 2 / expected).sum() < 180
    counts[0] = 0  # the control: a sampler that never moves the first sample would be seen
    counts[0, 0] = num_keys
    assert ((counts - expected) ** 2 / expected).sum() > 900


def test_golden_order():
    """These batches never change: runs stay comparable between versions."""
    sampler = ExactSampler(10, 4, 2, seed=0)
    assert [sampler.batch(step).tolist() for step in range(1, 7)] == [
        [8, 5, 7, 1],
        [2, 3, 9, 0],
        [6, 4],
        [6, 5, 4, 1],
        [7, 2, 0, 8],
        [9, 3],
    ]


@settings(max_examples=60)
@given(st.integers(1, 700), st.integers(1, 300), st.integers(0, 5), st.booleans())
def test_every_epoch_has_every_sample_once(num_samples, batch_size, number, shuffle):
    """Nothing is padded, repeated or dropped, for any sizes."""
    sampler = ExactSampler(num_samples, batch_size, seed=3, shuffle=shuffle)
    order = epoch(sampler, number)
    assert sorted(order) == list(range(num_samples))
    assert shuffle or order == list(range(num_samples))


def test_epochs_and_seeds_have_their_own_order():
    """No two of several epochs or seeds share an order; the same epoch of the same seed does."""
    orders = [epoch(ExactSampler(50, 8, seed=seed), number) for seed in (0, 1) for number in range(4)]
    assert len({tuple(order) for order in orders}) == 8
    assert epoch(ExactSampler(50, 8, seed=1), 3) == orders[-1]


def test_batch_size_does_not_change_the_order():
    """The epoch's order belongs to seed and epoch: the batch size only cuts it."""
    assert epoch(ExactSampler(97, 8), 2) == epoch(ExactSampler(97, 31), 2) == epoch(ExactSampler(97, 97), 2)


@settings(max_examples=60)
@given(st.integers(1, 500), st.integers(1, 200), st.integers(1, 24), st.data())
def test_micro_batches_are_the_batch_cut_for_the_replicas(num_samples, batch_size, replicas, data):
    """Put together they are the batch; their sizes are those of the score; a short batch is cut the same way."""
    sampler = ExactSampler(num_samples, batch_size, replicas)
    step = data.draw(st.integers(1, 3 * sampler.steps_per_epoch))
    batch, micros = sampler.batch(step), sampler.micro_batches(step)
    assert np.concatenate(micros).tolist() == batch.tolist()
    assert [len(micro) for micro in micros] == [len(part) for part in cut(len(batch), replicas)]
    assert batch.dtype == np.int64


def test_one_replica_computes_the_whole_batch():
    """Without a number of replicas a step is one micro-batch."""
    sampler = ExactSampler(10, 4)
    assert [micro.tolist() for micro in sampler.micro_batches(1)] == [sampler.batch(1).tolist()]


def test_a_step_does_not_depend_on_the_steps_asked_before():
    """Resuming needs the step's number only: any order of questions has the same answers."""
    num_steps = 3 * ExactSampler(40_000, 4096).steps_per_epoch
    walked = ExactSampler(40_000, 4096, seed=9)
    forward = {step: walked.batch(step).copy() for step in range(1, num_steps + 1)}
    for step in range(num_steps, 0, -1):
        assert np.array_equal(ExactSampler(40_000, 4096, seed=9).batch(step), forward[step])
        assert np.array_equal(walked.batch(step), forward[step])


def test_an_order_is_computed_by_blocks(monkeypatch):
    """16,384 positions at once, whatever part of them a step asks for: what makes a sample cost nanoseconds."""
    computed = []

    def counted(positions, *rest):
        computed.append((int(positions[0]), len(positions)))
        return permute(positions, *rest)

    monkeypatch.setattr("unisono.data.sampler.permute", counted)
    sampler = ExactSampler(40_000, 4096)
    for step in (1, 2, 1, 3, 4, 5, 6, 5, 10):
        sampler.batch(step)
    assert computed == [(0, 16384), (16384, 16384), (36864, 40_000 - 36864)]


def test_a_far_step_of_a_huge_data_set_costs_nothing():
    """Step 10**9 of 10**12 samples is computed, not walked to."""
    sampler = ExactSampler(10**12, 256, seed=1)
    batch = sampler.batch(10**9)
    assert len(set(batch.tolist())) == 256
    assert batch.min() >= 0
    assert 10**9 < batch.max() < 10**12
    assert sampler.epoch_of(10**9) == 0
    assert [ExactSampler(1000, 256).epoch_of(step) for step in (1, 2, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]
    assert ExactSampler(1000, 256).epoch_of(10**9) == (10**9 - 1) // 4


@pytest.mark.parametrize(
    ("sizes", "name"), [((0, 1, 1), "num_samples"), ((1, 0, 1), "batch_size"), ((1, 1, 0), "replicas")]
)
def test_numbers_below_one_are_refused(sizes, name):
    """No samples, no batch and no replicas are wrong settings, named."""
    with pytest.raises(ConfigError, match=f"expected {name} as a whole number of .* from 1 to .*, got 0"):
        ExactSampler(*sizes)


def test_who_asks_again_gets_an_array_of_its_own():
    """What one asker does to its array's flags or shape does not reach the next; the samples are the same."""
    sampler = ExactSampler(100, 8, 2, seed=3)
    mine = sampler.batch(5)
    mine.setflags(write=False)
    again = sampler.batch(5)
    assert again is not mine
    assert again.flags.writeable
    assert again.tolist() == mine.tolist() == ExactSampler(100, 8, 2, seed=3).batch(5).tolist()
    assert sampler.batch(6).tolist() != mine.tolist()


def brute_force(num_samples: int, batch_size: int, last: str) -> list[int]:
    """Return the sizes of an epoch's batches."""
    full, rest = divmod(num_samples, batch_size)
    if last == "drop" or not rest:
        return [batch_size] * full
    if last == "short" or not full:
        return [batch_size] * full + [rest]
    return [batch_size] * (full - 1) + [batch_size + rest]


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 300), st.integers(1, 60), st.sampled_from(LAST), st.integers(0, 5), st.booleans(), st.integers(0, 3)
)
def test_what_becomes_of_the_last_samples(num_samples, batch_size, last, pool, shuffle, number):
    """Sizes and order are those of a plan made step by step; `join` has every sample once, `drop` all but the tail."""
    assume(last != "drop" or num_samples >= batch_size)
    lengths = np.arange(num_samples) % 7 if pool else None
    sampler = ExactSampler(
        num_samples, batch_size, 3, seed=3, shuffle=shuffle, last=last, lengths=lengths, length_pool=pool
    )
    sizes = brute_force(num_samples, batch_size, last)
    steps = range(number * len(sizes) + 1, (number + 1) * len(sizes) + 1)
    assert sampler.steps_per_epoch == len(sizes)
    assert [len(sampler.batch(step)) for step in steps] == sizes
    assert {sampler.epoch_of(step) for step in steps} == {number}
    order = epoch(sampler, number)
    assert len(set(order)) == len(order) == (sum(sizes) if last == "drop" else num_samples)
    if pool == 0:
        usual = epoch(ExactSampler(num_samples, batch_size, 3, seed=3, shuffle=shuffle), number)
        assert order == usual[: len(order)]


def test_what_is_dropped_changes_with_the_epoch():
    """Where the order is shuffled, every sample has its turn."""
    sampler = ExactSampler(10, 4, last="drop")
    assert sampler.steps_per_epoch == 2
    assert set().union(*(epoch(sampler, number) for number in range(20))) == set(range(10))


def test_an_order_of_ones_own_knows_its_epochs_in_a_longer_batch():
    """What counts its own passes is asked for the same places."""

    class Passes:
        num_samples, score = 10, {}

        def at(self, epoch, start, stop):
            return np.arange(start, stop)

        def epochs_at(self, epoch, start, stop):
            return np.arange(start, stop) + 100 * epoch

    for last in LAST:
        sampler = ExactSampler(10, 4, order=Passes(), last=last)
        for step in range(1, 2 * sampler.steps_per_epoch + 1):
            assert (sampler.epochs(step) % 100).tolist() == sampler.batch(step).tolist()
        assert sampler.epochs(sampler.steps_per_epoch + 1)[0] == 100


def test_words_for_the_last_samples():
    """Others are refused, and what would leave nothing."""
    with pytest.raises(ConfigError, match="'short', 'drop', 'join', got 'keep'"):
        ExactSampler(10, 4, last="keep")
    with pytest.raises(DataError, match=r"leaves nothing of 3 samples.*last='join'"):
        ExactSampler(3, 4, last="drop")
    assert ExactSampler(3, 4, last="join").steps_per_epoch == 1
