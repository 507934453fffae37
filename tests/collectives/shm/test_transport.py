"""The shared-memory transport between real processes."""

import re
from pathlib import Path

import pytest

from collectives import shm_programs
from forks import run_forked
from ranks import once

SIZES = [pytest.param(2, marks=pytest.mark.slow), 4]


@once
def launched(world_size):
    """Return what each rank of one launch has seen."""
    return run_forked(shm_programs.execute, world_size)


@pytest.mark.parametrize("world_size", SIZES)
def test_it_is_the_default_on_one_host(world_size):
    """CPU ranks of one host are joined by shared memory without being asked."""
    for seen in launched(world_size):
        assert (seen["class"], seen["default"]) == ("ShmTransport", "ShmTransport")


@pytest.mark.parametrize("world_size", SIZES)
def test_reductions_have_the_bits_of_the_tree(world_size):
    """Every dtype, placement and short batch: the plain pairwise sum on all ranks; in pieces, gloo's bits."""
    for seen in launched(world_size):
        assert seen["reduced"]["wrong"] == []
        assert seen["reduced"]["num_checked"] > 50
        assert seen["differs"] == []
    assert any(seen["reduced"]["serial_differs"] for seen in launched(world_size))


@pytest.mark.parametrize("world_size", SIZES)
def test_everything_arrives(world_size):
    """Gathered and exchanged tensors arrive whole: empty, tiny, and many times larger than a slot."""
    for seen in launched(world_size):
        assert seen["lost_in_transit"] == []


@pytest.mark.parametrize("world_size", SIZES)
def test_different_calls_are_told_to_every_rank(world_size):
    """Other sizes or another collective on one rank: all ranks get the same explanation, none hangs."""
    for seen in launched(world_size):
        assert seen["other_size"].startswith("RankDivergence")
        assert "rank 0: all_gather_single of (3,) float32" in seen["other_size"]
        assert "rank 1: all_gather_single of (4,) float32" in seen["other_size"]
        assert "rank 0: all_gather_single of (1,) float32; rank 1: barrier" in seen["other_call"]
        assert "all_to_all: rank 0 expects" in seen["splits"]


@pytest.mark.parametrize("world_size", SIZES)
def test_a_late_rank_is_named(world_size):
    """A rank that lives but does not come is named after the timeout."""
    first, *others = launched(world_size)
    assert "late" not in first
    for seen in others:
        assert re.search(r"rank 0 \(process \d+\) has not come within 0.3 s \(waiting in barrier", seen["late"])


@pytest.mark.parametrize("world_size", SIZES)
def test_a_dead_rank_is_named(world_size):
    """A rank that ends is named, with its process, by all others."""
    *left_behind, _ = launched(world_size)
    for seen in left_behind:
        assert seen["expected_dead"] in seen["dead"]


@pytest.mark.slow
def test_leaving_after_the_last_meeting_is_no_death():
    """Ranks may end as soon as they have left a barrier, while others are still in it."""
    assert run_forked(shm_programs.leave_early, 4) == ["done"] * 4


def test_nothing_is_left_behind():
    """The memory has no name, so a killed run cannot leave any."""
    launched(4)
    assert not [path.name for path in Path("/dev/shm").iterdir() if "unisono" in path.name]
