"""Who computes a replica: contiguous, complete, as even or as proportional as whole numbers allow."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.collectives.placement import check_world, cut, place_by_shares, place_evenly, place_whole
from unisono.collectives.tree import nodes
from unisono.errors import ConfigError

positive = st.integers(1, 200)


def flat(parts):
    return [item for part in parts for item in part]


@given(st.integers(0, 5000), positive)
def test_cut_covers_everything_once_in_order(total, parts):
    """The parts are contiguous, in order, and together exactly range(total)."""
    pieces = cut(total, parts)
    assert len(pieces) == parts
    assert flat(pieces) == list(range(total))


@given(st.integers(0, 5000), positive)
def test_cut_makes_the_first_parts_one_longer(total, parts):
    """Sizes are as in the score: the first total % parts parts have one more."""
    size, longer = divmod(total, parts)
    assert [len(piece) for piece in cut(total, parts)] == [size + 1] * longer + [size] * (parts - longer)


def test_even_placement_golden():
    """A pinned example: which rank hosts which replicas."""
    assert place_evenly(8, 3) == [range(3), range(3, 6), range(6, 8)]


@given(positive, st.data())
def test_even_placement_gives_every_rank_work(replicas, data):
    """Every rank hosts a replica, every replica one rank, and no rank has two more than another."""
    world_size = data.draw(st.integers(1, replicas))
    placement = place_evenly(replicas, world_size)
    sizes = [len(part) for part in placement]
    assert flat(placement) == list(range(replicas))
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def cost(placement, replicas):
    """Most replicas, and most partial sums, of a rank."""
    return max(map(len, placement)), max(len(nodes(part.start, part.stop, replicas)) for part in placement)


@pytest.mark.parametrize("replicas", [*range(1, 13), 16])
def test_whole_subtrees_cost_no_computing(replicas):
    """Of all placements with the even one's largest number of replicas, none sends fewer partial sums at most."""
    for world_size in range(1, min(replicas, 6) + 1):
        even, found = place_evenly(replicas, world_size), [*place_whole(replicas, world_size)]
        assert flat(found) == list(range(replicas))
        assert len(found) == world_size
        most, sent = cost(even, replicas)
        others = []
        for cuts in itertools.combinations(range(1, replicas), world_size - 1):
            bounds = itertools.pairwise([0, *cuts, replicas])
            others.append(cost([range(start, stop) for start, stop in bounds], replicas))
        assert cost(found, replicas) == (most, min(partials for count, partials in others if count == most))
        assert found == even or cost(found, replicas)[1] < sent


def test_whole_subtrees_golden():
    """Three ranks: 7 and 10 replicas lie so that each rank sends one sum; nothing as cheap does so for 8."""
    assert [len(part) for part in place_whole(7, 3)] == [2, 2, 3]
    assert [len(part) for part in place_whole(10, 3)] == [4, 4, 2]
    assert [*place_whole(8, 3)] == place_evenly(8, 3)


shares = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20)


@given(shares, st.integers(0, 100))
def test_shares_cover_everything_once(shares, more):
    """Whatever the shares, every rank hosts at least one replica and every replica is hosted once."""
    placement = place_by_shares(len(shares) + more, shares)
    assert flat(placement) == list(range(len(shares) + more))
    assert len(placement) == len(shares)
    assert min(len(part) for part in placement) >= 1


@given(shares, st.integers(1, 200))
def test_shares_are_kept_within_one_replica(shares, more):
    """Where every rank's due is at least one replica, none is a whole replica away from its due."""
    replicas = len(shares) + more
    due = [share / sum(shares) * replicas for share in shares]
    if min(due) < 1:
        return
    sizes = [len(part) for part in place_by_shares(replicas, shares)]
    assert all(abs(size - want) <= 1 + 1e-9 for size, want in zip(sizes, due, strict=True))


@given(shares, st.integers(0, 100))
def test_a_larger_share_never_gets_fewer_replicas(shares, more):
    """Proportion never turns around."""
    sizes = [len(part) for part in place_by_shares(len(shares) + more, shares)]
    ranked = sorted(range(len(shares)), key=lambda rank: shares[rank])
    for low, high in itertools.pairwise(ranked):
        assert shares[low] == shares[high] or sizes[low] <= sizes[high]


@given(positive, st.data())
def test_equal_shares_are_even_placement(replicas, data):
    """Equal shares and no shares are the same placement."""
    world_size = data.draw(st.integers(1, replicas))
    assert place_by_shares(replicas, [2.5] * world_size) == place_evenly(replicas, world_size)


def test_one_giant_leaves_the_others_their_one():
    """A share that would take everything still leaves each other rank a replica."""
    assert place_by_shares(4, [1000, 1, 1]) == [range(2), range(2, 3), range(3, 4)]


def test_more_ranks_than_replicas_are_refused_with_a_way_out():
    """A rank without work is a wrong setting, and the message says how many workers fit."""
    with pytest.raises(ConfigError, match=r"at most one for each of 4 replicas, got 5.*Hint: at most 4 workers"):
        place_evenly(4, 5)
    with pytest.raises(ConfigError, match="of 2 replicas, got 3"):
        place_by_shares(2, [1, 1, 1])
    check_world(4, 4)


@pytest.mark.parametrize(("replicas", "world_size"), [(0, 1), (-1, 1), (4, 0), (4, -2)])
def test_numbers_below_one_are_refused(replicas, world_size):
    """There is at least one replica and one rank."""
    with pytest.raises(ConfigError, match="expected"):
        check_world(replicas, world_size)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_shares_that_are_not_positive_numbers_are_refused(bad):
    """Zero, negative, NaN and infinite shares are wrong settings."""
    with pytest.raises(ConfigError, match="shares"):
        place_by_shares(4, [1.0, bad])


def test_no_shares_are_refused():
    """An empty list of shares is a world of zero ranks."""
    with pytest.raises(ConfigError, match="got 0"):
        place_by_shares(4, [])
