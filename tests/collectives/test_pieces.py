"""The cut of a flat buffer: buckets tile it, in the order in which gradients arrive, the same for all ranks."""

from hypothesis import example, given
from hypothesis import strategies as st

from unisono.collectives.pieces import ALIGNMENT, cut_into_buckets, padded_length

LENGTHS = st.integers(0, 1 << 28)
WORLDS = st.integers(1, 64)
ITEMS = st.sampled_from([1, 2, 4, 8, 16])


@given(LENGTHS, WORLDS)
def test_padding(length, world_size):
    """Every rank owns an equal, aligned slice, and no more padding than that takes."""
    padded = padded_length(length, world_size)
    assert padded % (ALIGNMENT * world_size) == 0
    assert 0 <= padded - length < ALIGNMENT * world_size


@given(LENGTHS, WORLDS, ITEMS)
@example(0, 2, 4)
@example(1 << 17, 2, 4)
def test_buckets_tile_the_buffer_from_its_end(length, world_size, item_bytes):
    """Each element lies in one bucket; the next bucket ends where one starts; ranks own equal, aligned chunks."""
    padded = padded_length(length, world_size)
    buckets = cut_into_buckets(padded, world_size, item_bytes)
    assert [bucket.stop for bucket in buckets] == [padded, *(bucket.start for bucket in buckets[:-1])][: len(buckets)]
    assert sum(map(len, buckets)) == padded
    assert all(len(bucket) and len(bucket) % (ALIGNMENT * world_size) == 0 for bucket in buckets)
    assert not buckets or buckets[-1].start == 0


@given(LENGTHS, WORLDS, ITEMS)
def test_buckets_are_few_and_not_tiny(length, world_size, item_bytes):
    """A bucket costs messages: a small buffer is one, and no rank's chunk (but of the last bucket) is below 64 KiB."""
    buckets = cut_into_buckets(padded_length(length, world_size), world_size, item_bytes)
    chunks = [len(bucket) * item_bytes // world_size for bucket in buckets]
    assert all(chunk >= 1 << 16 for chunk in chunks[:-1])
    assert len({len(bucket) for bucket in buckets[:-2]}) <= 1
    assert [*map(len, buckets)] == sorted(map(len, buckets), reverse=True)
    if length * item_bytes < 1 << 20:
        assert len(buckets) <= 1


def test_a_large_buffer_is_cut():
    """Control: 32 MB between two ranks leave in many buckets, none above 5 MiB, and the last one is small."""
    buckets = cut_into_buckets(1 << 23, 2, 4)
    assert len(buckets) == 8
    assert max(map(len, buckets)) * 4 <= 5 << 20
    assert len(buckets[-1]) * 4 == 2 << 16
    assert cut_into_buckets(1 << 23, 4, 4)[0].stop == 1 << 23
