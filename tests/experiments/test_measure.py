"""What is timed is right: each collective's result is checked, and ours is held to the bits of the tree."""

import pytest

from ranks import run_threads
from unisono.errors import ConfigError, RankDivergence
from unisono.experiments import contestants, measure
from unisono.experiments.collectives import COLLECTIVES


def test_a_wrong_result_is_not_measured():
    """A collective that gives another result is an error, not a fast row."""

    def program(transport):
        wrong = contestants.Contestant(
            collective="all_reduce", transport="made", num_bytes=4, prepare=lambda: None, call=lambda: None,
            is_right=lambda calls: transport.rank == 0,
        )  # fmt: skip
        return [row.median_s for row in measure._compete([wrong], 1, transport)]

    with pytest.raises(RankDivergence, match="all_reduce over made with 4 bytes gave a wrong result"):
        run_threads(program, 2)


def test_our_all_reduce_is_held_to_the_bits_of_the_tree():
    """The check of our own all-reduce sees the last bit, and another order of addition."""

    def program(transport):
        one = contestants.tree_sum("loopback", transport, 64)
        one.prepare()
        before = one.is_right(1)
        one.call()
        after = [one.is_right(1), one.is_right(2)]
        one.call()
        return [before, *after, one.is_right(2)]

    assert run_threads(program, 4) == [[False, True, False, True]] * 4
    periods = [contestants._rough(rank) for rank in range(4)]
    serial = ((periods[0] + periods[1]) + periods[2]) + periods[3]
    canonical = (periods[0] + periods[1]) + (periods[2] + periods[3])
    assert contestants._repeats(canonical.repeat(4), canonical)
    assert not contestants._repeats(serial.repeat(4), canonical)


def test_a_sum_after_work_is_checked_like_the_bare_one():
    """The calibration's rows: the work alone, and before our sum over each transport; a sum left out would be seen."""

    def program(transport):
        work, both = contestants.after_work({"loopback": transport}, 64)
        seen = []
        for one in (work, both):
            both.prepare()
            one.call()
            seen.append((one.collective, one.transport, both.is_right(1)))
        return seen

    expected = [[contestants.WORK, "memory", False], [contestants.AFTER_WORK, "loopback", True]]
    assert run_threads(program, 2) == [expected] * 2


class OneRank:
    """Enough of a process group to make contestants."""

    def __init__(self, rank):
        self.rank, self.size = (lambda: rank), (lambda: 2)


@pytest.mark.parametrize("name", contestants.BUFFERED)
def test_spoilt_results_are_noticed(name):
    """Each contestant's check refuses what `prepare` leaves: only the call can make it right."""
    for rank in range(2):
        one = contestants.BUFFERED[name](OneRank(rank), 64)
        one.prepare()
        is_receiver = rank == 0 or name not in ("reduce", "gather")
        is_source = rank == 0 and name == "broadcast"
        assert one.is_right(1) == (is_source or not is_receiver)


def test_a_plain_copy_is_checked():
    """The limit is measured with a copy that took place."""
    copy = contestants.memcpy(96)
    copy.prepare()
    assert not copy.is_right(1)
    copy.call()
    assert copy.is_right(1)


def test_the_names_are_those_that_can_be_measured():
    """The command line knows them without torch."""
    assert (*contestants.BUFFERED, "tree_all_reduce", "barrier") == COLLECTIVES


def test_measuring_alone_is_refused(tmp_path):
    """One rank, no sizes or no repetitions are wrong settings."""
    for sizes, repeat in (([4096], 1), ([], 1), ([4096], 0)):
        with pytest.raises(ConfigError, match="at least 2 ranks"):
            measure.measure(sizes, repeat, [], str(tmp_path / "rows.json"))
    assert not list(tmp_path.iterdir())
