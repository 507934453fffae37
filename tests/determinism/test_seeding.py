"""Every draw has a key of its own, the same in every version."""

import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.determinism.seeding import mix

int64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("arguments", "bits"),
    [
        ((0, "order", 0), 12174131014002871997),
        ((7, "replica", 3, 1), 16438206139639085744),
        ((-1, "sample", 0, 2**40), 7735977866543339847),
    ],
)
def test_golden_values(arguments, bits):
    """These numbers never change: runs stay comparable between versions."""
    assert mix(*arguments) == bits


@given(int64, st.sampled_from(["replica", "sample", "order", ""]), st.lists(int64, max_size=4))
def test_the_definition(seed, purpose, counters):
    """A key is BLAKE2b of the numbers as little-endian words, with the purpose as its personalisation."""
    packed = b"".join(number.to_bytes(8, "little", signed=True) for number in (seed, *counters))
    digest = hashlib.blake2b(packed, digest_size=8, person=purpose.encode()).digest()
    assert mix(seed, purpose, *counters) == int.from_bytes(digest, "little")


@given(int64, st.sampled_from(["replica", "sample", "order"]), st.lists(int64, max_size=4))
def test_keys_are_64_bits_and_repeatable(seed, purpose, counters):
    """A key is a pure function into 64 bits, for any seed and counters that fit in 64 bits."""
    key = mix(seed, purpose, *counters)
    assert key == mix(seed, purpose, *counters)
    assert 0 <= key < 2**64


@given(int64, st.lists(int64, min_size=1, max_size=4), st.data())
def test_every_argument_counts(seed, counters, data):
    """Changing the seed, the purpose, any counter or their number changes the key."""
    key = mix(seed, "replica", *counters)
    place = data.draw(st.integers(0, len(counters) - 1))
    other = data.draw(int64.filter(lambda value: value != counters[place]))
    changed = [*counters[:place], other, *counters[place + 1 :]]
    assert key != mix(seed, "replica", *changed)
    assert key != mix(seed ^ 1, "replica", *counters)
    assert key != mix(seed, "sample", *counters)
    assert key != mix(seed, "replica", *counters, 0)
    assert key != mix(seed, "replica", *counters[:-1])


def test_neighbouring_keys_share_no_pattern():
    """Keys of neighbouring counters are distinct and differ in about half of their bits."""
    keys = [mix(seed, "replica", step, v) for seed in range(3) for step in range(40) for v in range(8)]
    assert len(set(keys)) == len(keys)
    flipped = [(a ^ b).bit_count() for a, b in itertools.pairwise(keys)]
    assert 30 < sum(flipped) / len(flipped) < 34


def test_long_purposes_stay_apart():
    """Purposes that agree in their first sixteen letters have different keys, or are refused."""
    names = ("augmentation of images", "augmentation of texts")
    try:
        keys = {mix(0, name) for name in names}
    except ValueError:
        return
    assert len(keys) == 2
