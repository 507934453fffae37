"""The owner-computes exchange: the bits of the tree on every rank, and what it costs."""

import pytest

from collectives.launched import launched
from collectives.rank_programs import reduce_everything
from ranks import once, run_threads

WORLDS = [
    *[pytest.param(run_threads, size, id=f"loopback-{size}") for size in (1, 2, 3, 4, 5, 8)],
    *[pytest.param(None, size, id=f"gloo-{size}") for size in (2, 3)],
]


@once
def results(run, world_size):
    """Return every rank's report, from this process or from a launch."""
    if run is None:
        return [seen["reduced"] for seen in launched(world_size)]
    return run(reduce_everything, world_size)


@pytest.mark.parametrize(("run", "world_size"), WORLDS)
def test_the_bits_of_the_tree_on_every_rank(run, world_size):
    """All ranks get the plain pairwise sum, in every dtype, for any placement, also where ranks have no leaf."""
    reports = results(run, world_size)
    assert len(reports) == world_size
    for report in reports:
        assert report["wrong"] == []
        assert report["num_checked"] > 50
    if world_size > 1:
        assert reports[-1]["num_idle"] > 0  # some cases left the last rank without a leaf
    assert any(report["serial_differs"] for report in reports)  # negative control: the order can be seen


@pytest.mark.parametrize(("run", "world_size"), WORLDS)
def test_signs_of_zero_survive(run, world_size):
    """A sum of -0.0 stays -0.0, which an added +0.0 would flip; with one +0.0 among the leaves it is +0.0."""
    for report in results(run, world_size):
        assert report["signs"] == [1, 0]


@pytest.mark.parametrize(("run", "world_size"), WORLDS)
def test_bytes_sent(run, world_size):
    """With V and M powers of two, a rank sends 2(M-1)/M of the buffer, as a ring would, and not a byte more."""
    for report in results(run, world_size):
        if world_size in (1, 2, 4, 8):
            assert report["sent"] * world_size == 2 * (world_size - 1) * report["num_bytes"]
        else:  # some ranks have more than one partial
            assert report["sent"] * world_size > 2 * (world_size - 1) * report["num_bytes"] * 0.9
