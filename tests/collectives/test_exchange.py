"""Exchanges bucket by bucket: the bits of the tree on every rank, whatever carries them, and the bytes they cost."""

import pytest

from collectives.exchange_programs import exchange_everything
from collectives.launched import launched
from ranks import once, run_threads

WORLDS = [
    *[pytest.param(run_threads, size, id=f"loopback-{size}") for size in (2, 3, 4)],
    *[pytest.param(None, size, id=f"gloo-{size}") for size in (2, 3)],
]


@once
def results(run, world_size):
    """Return every rank's report, from this process or from a launch."""
    if run is None:
        return [seen["exchange"] for seen in launched(world_size)]
    return run(exchange_everything, world_size)


@pytest.mark.parametrize(("run", "world_size"), WORLDS)
def test_the_bits_of_the_tree_on_every_rank(run, world_size):
    """All ranks get the plain pairwise sum of every bucket: several dtypes, placements, and ranks without a leaf."""
    reports = results(run, world_size)
    assert len(reports) == world_size
    for report in reports:
        assert report["class"] == ("OneByOne" if run else "PieceExchange")
        assert report["wrong"] == []
        assert report["num_checked"] > 50
    assert any(report["serial_differs"] for report in reports)  # negative control: the order can be seen


@pytest.mark.parametrize(("run", "world_size"), WORLDS)
def test_what_ranks_tell_beside_a_sum(run, world_size):
    """Every rank gets every rank's few bytes of that step, in rank order."""
    expected = [[[rank, number, 7] for rank in range(world_size)] for number in range(3)]
    assert [report["told"] for report in results(run, world_size)] == [expected] * world_size


@pytest.mark.parametrize(("run", "world_size"), WORLDS)
def test_bytes(run, world_size):
    """A rank sends its partials' foreign chunks and its sum to each other: 2(M-1)/M of the buffer with one partial."""
    for rank, report in enumerate(results(run, world_size)):
        assert [case for case, (counted, expected, _) in report["sent"].items() if counted != expected] == []
        even = f"{[4] * world_size} {4 * world_size}"
        counted, _, whole = report["sent"][even]
        assert counted * world_size == 2 * (world_size - 1) * whole
        uneven = f"{[1] * (world_size - 1) + [3 * world_size + 1]} {4 * world_size}"
        more, _, _ = report["sent"][uneven]
        assert (more > counted) == (rank == world_size - 1)  # several partials cost more
