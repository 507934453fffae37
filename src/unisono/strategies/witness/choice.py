"""Which replica of a step is computed twice, which rank is its witness, and who is wrong (pure).

In: plain numbers that all ranks know. Out: the same choice and the same verdict on all of them, with no message.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from unisono.determinism.seeding import mix


class Watched(NamedTuple):
    """A replica that two ranks compute: its `owner`, and its `witness`."""

    replica: int
    owner: int
    witness: int


def choose(seed: int, step: int, placement: Sequence[range], leaves: int, rate: float) -> Watched | None:
    """Return what is computed twice in a step; None: nothing is.

    Args:
        seed: Of the run.
        step: 1-based.
        placement: The replicas of each rank.
        leaves: Replicas with samples, from 0.
        rate: In this share of the steps there is one; from 0 to 1.
    """
    if len(placement) < 2 or mix(seed, "witness", step) >> 11 >= rate * (1 << 53):
        return None
    replica = mix(seed, "witness", step, 0) % leaves
    owner = next(rank for rank, hosted in enumerate(placement) if replica in hosted)
    able = witnesses(placement, leaves, owner)
    return Watched(replica, owner, able[mix(seed, "witness", step, 1) % len(able)])


def witnesses(placement: Sequence[range], leaves: int, owner: int) -> list[int]:
    """Return the ranks that may be witness of a rank's replica: of the others those that have least to compute."""
    loads = {rank: _load(hosted, leaves) for rank, hosted in enumerate(placement) if rank != owner}
    fewest = min(loads.values())
    return [rank for rank, load in loads.items() if load == fewest]


def culprits(votes: Sequence[int]) -> tuple[int, ...]:
    """Return who is wrong: the ranks whose bits are not those of more than half of all ranks; none where none are so.
    `votes`, by rank: what it has computed for one replica.
    """
    (usual, count), *_ = Counter(votes).most_common(1)
    return tuple(rank for rank, vote in enumerate(votes) if vote != usual) if 2 * count > len(votes) else ()


def chances(placement: Sequence[range], leaves: int) -> list[float]:
    """Return of each rank how probable it is that a replica which is computed twice is computed by it."""
    found = [0.0] * len(placement)
    for owner, hosted in enumerate(placement):
        share = _load(hosted, leaves) / leaves
        found[owner] += share
        for rank in (able := witnesses(placement, leaves, owner)):
            found[rank] += share / len(able)
    return found


def steps_to_detection(placement: Sequence[range], leaves: int, rate: float) -> float:
    """Return the mean number of steps until a rank that computes every replica wrong is noticed, the luckiest one."""
    return 1 / (rate * min(chances(placement, leaves)))


def _load(hosted: range, leaves: int) -> int:
    """Return how many replicas with samples are among some."""
    return max(0, min(hosted.stop, leaves) - hosted.start)
