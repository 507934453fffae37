"""Which replica is computed twice, by whom, and who is wrong: proofs over every small world."""

import itertools
import math
from collections import Counter

import pytest

from unisono.collectives.placement import place_evenly, place_whole
from unisono.strategies.witness.choice import chances, choose, culprits, steps_to_detection, witnesses

WORLDS = [(replicas, size) for replicas in range(2, 9) for size in range(2, min(5, replicas) + 1)]


@pytest.mark.parametrize(("replicas", "size"), WORLDS)
def test_the_witness_is_another_rank(replicas, size):
    """The owner hosts the replica, the witness does not, and has as little to compute as any other rank."""
    placement = place_whole(replicas, size)
    for leaves, step in itertools.product(range(1, replicas + 1), range(1, 60)):
        watched = choose(7, step, placement, leaves, 1.0)
        assert watched is not None
        assert 0 <= watched.replica < leaves
        assert watched.replica in placement[watched.owner]
        assert watched.witness != watched.owner
        loads = [sum(replica < leaves for replica in hosted) for hosted in placement]
        assert loads[watched.witness] == min(load for rank, load in enumerate(loads) if rank != watched.owner)


def test_every_replica_has_its_turn_at_the_rate():
    """Steps are drawn at the rate, replicas and witnesses evenly, within four standard deviations."""
    placement, steps, rate = place_evenly(8, 4), 20_000, 0.25
    found = [watched for step in range(1, steps + 1) if (watched := choose(1, step, placement, 8, rate))]
    assert abs(len(found) - rate * steps) < 4 * math.sqrt(steps * rate * (1 - rate))
    for counts, ways in (
        (Counter(watched.replica for watched in found), 8),
        (Counter((watched.owner, watched.witness) for watched in found), 12),
    ):
        assert len(counts) == ways
        usual = len(found) / ways
        assert all(abs(count - usual) < 4 * math.sqrt(usual) for count in counts.values())


def test_nothing_and_everything():
    """A rate of 0 draws no step, 1 draws all, and one rank alone has no witness."""
    placement = place_evenly(4, 2)
    assert not any(choose(0, step, placement, 4, 0.0) for step in range(500))
    assert all(choose(0, step, placement, 4, 1.0) for step in range(500))
    assert choose(0, 1, place_evenly(4, 1), 4, 1.0) is None


@pytest.mark.parametrize("size", range(2, 7))
def test_a_minority_is_named_and_nobody_else(size):
    """Of all ways to be wrong: fewer than half are named, all of them; where half are wrong, no right rank is."""
    for votes in itertools.product(range(3), repeat=size):  # 0 is right
        wrong = {rank for rank, vote in enumerate(votes) if vote}
        if 2 * len(wrong) < size:
            assert set(culprits(votes)) == wrong
        elif max(Counter(votes).values()) * 2 <= size:
            assert culprits(votes) == ()


def test_the_time_to_detection_is_that_of_a_simulation():
    """A rank that is always wrong is noticed after as many steps as is said, on the mean of 400 runs."""
    placement, rate = place_whole(8, 3), 0.5
    unlucky = min(range(3), key=chances(placement, 8).__getitem__)
    expected = steps_to_detection(placement, 8, rate)
    waits = []
    for seed in range(400):
        for step in itertools.count(1):
            watched = choose(seed, step, placement, 8, rate)
            if watched and unlucky in watched[1:]:
                waits.append(step)
                break
    assert abs(sum(waits) / 400 - expected) < 4 * expected / 20
    assert sum(chances(placement, 8)) == pytest.approx(2)


def test_an_idle_rank_is_the_witness():
    """A rank without a sample has least to compute."""
    assert witnesses(place_evenly(4, 4), 3, owner=0) == [3]
