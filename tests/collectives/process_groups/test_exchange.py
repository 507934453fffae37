"""The exchange by messages between pairs of ranks; its bits and bytes are tested in `collectives.test_exchange`."""

import pytest

from collectives.launched import launched

SIZES = [2, 3]


@pytest.mark.parametrize("world_size", SIZES)
def test_a_step_that_failed_leaves_nothing_for_later_ones(world_size):
    """What ranks have sent and posted for a step that was given up reaches no later step."""
    assert [seen["left_behind"] for seen in launched(world_size)] == [{"right": True}] * world_size


@pytest.mark.parametrize("world_size", SIZES)
def test_nothing_is_added_into_what_is_still_being_sent(world_size):
    """Where a rank takes its messages late, the others' sums wait for it."""
    assert [seen["late"] for seen in launched(world_size)] == [{"right": True}] * world_size


@pytest.mark.slow
@pytest.mark.parametrize("world_size", SIZES)
def test_two_ranks_give_no_sum_where_its_result_comes(world_size):
    """The other's partial sum would fall into it; more ranks may, for theirs come elsewhere."""
    for seen in launched(world_size):
        assert ("lies where its result comes" in seen["in_place"]) is (world_size == 2)


@pytest.mark.parametrize("world_size", SIZES)
def test_ranks_with_other_buffers_are_told(world_size):
    """Lengths that differ, even in the last group alone, are an error in words on every rank before a byte is sent."""
    for seen in launched(world_size):
        assert seen["other_buckets"].startswith("RankDivergence: ")
        for length in (64, 96):
            assert f"tree_all_reduce of 4096 x float32 + {length} x float64, 2 leaves" in seen["other_buckets"]
