"""Data cut by fractions: nothing lost, nothing twice, the same everywhere."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unisono.data.partition import DataPartitioner, Partition
from unisono.errors import ConfigError


def test_golden_output():
    """The mission's example prints exactly these parts."""
    parts = DataPartitioner(range(1, 11), [0.7, 0.2, 0.1], seed=1234)
    assert [list(parts.use(part)) for part in range(3)] == [[3, 9, 4, 6, 7, 5, 10], [1, 2], [8]]


def test_the_defaults_are_the_example():
    """Without settings: 70, 20 and 10 per cent with seed 1234."""
    assert list(DataPartitioner(range(1, 11)).use(1)) == [1, 2]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12), st.integers(0, 3000), st.integers())
@example([1, 1, 1], 10, 0)
@example([7, 2, 1], 10, 1234)
def test_fractions_that_make_a_whole_use_every_sample_once(weights, length, seed):
    """Whatever the fractions and the length, no sample is lost and none is in two parts."""
    sizes = [weight / sum(weights) for weight in weights]
    parts = DataPartitioner(range(length), sizes, seed=seed)
    everything = [sample for part in range(len(sizes)) for sample in parts.use(part)]
    assert sorted(everything) == list(range(length))
    for part, size in enumerate(sizes):
        assert abs(len(parts.use(part)) - size * length) <= 1


@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=10), st.integers(0, 500))
def test_fractions_below_a_whole_never_overlap(sizes, length):
    """Parts that do not add up to everything still share no sample."""
    parts = DataPartitioner(range(length), sizes)
    chosen = [sample for part in range(len(sizes)) for sample in parts.use(part)]
    assert len(chosen) == len(set(chosen)) <= length


def test_the_seed_alone_decides():
    """One seed gives one cut, another seed another."""
    cuts = [DataPartitioner(range(100), [0.5, 0.5], seed=seed).partitions for seed in (1, 1, 2)]
    assert cuts[0] == cuts[1] != cuts[2]


@pytest.mark.parametrize("sizes", [[0.5, -0.1], [0.7, 0.4], [float("nan")], [float("inf")], [1.0, 1e-6]])
def test_bad_fractions_are_refused(sizes):
    """Negative fractions, more than a whole, and no numbers are wrong settings."""
    with pytest.raises(ConfigError, match="expected fractions"):
        DataPartitioner(range(10), sizes)


def test_rounding_errors_are_no_more_than_a_whole():
    """Fractions that miss 1 by what sums of floats miss it by are a whole."""
    for sizes in ([0.1] * 10, [1 / 3] * 3, [1 + 1e-9]):
        parts = DataPartitioner(range(10), sizes)
        assert sorted(sample for part in parts.partitions for sample in part) == list(range(10))


def test_a_partition_is_a_sequence_over_the_data():
    """A part has a length, items, slices and iteration, and reads the data behind it."""
    part = Partition("abcdef", [4, 0, 2])
    assert (len(part), part[0], part[-1], list(part), "".join(part[1:])) == (3, "e", "c", ["e", "a", "c"], "ac")
    assert "e" in part
    assert "b" not in part
    with pytest.raises(IndexError):
        part[3]
