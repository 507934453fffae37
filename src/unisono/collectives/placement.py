"""Which contiguous range of replicas each rank hosts, and how a batch is cut (pure).

In: numbers of the score and of today's world. Out: ranges. Nothing here may change a bit of the result:
placement only says who computes a replica.
"""

import functools
import math
from collections.abc import Sequence

from unisono.collectives.tree import nodes
from unisono.errors import ConfigError

_MOST_TO_SEARCH = 1 << 17
"""Replicas times ranks, which take a third of a second."""


def cut(total: int, parts: int) -> list[range]:
    """Cut ``range(total)`` into contiguous parts, the first ``total % parts`` one longer.

    Example:
        >>> cut(10, 4)
        [range(0, 3), range(3, 6), range(6, 8), range(8, 10)]
    """
    size, longer = divmod(total, parts)
    starts = [index * size + min(index, longer) for index in range(parts + 1)]
    return [range(starts[index], starts[index + 1]) for index in range(parts)]


@functools.lru_cache(maxsize=256)
def parts_of(total: int, parts: int) -> tuple[range, ...]:
    """Return `cut`, kept from call to call: for what is asked in every step."""
    return tuple(cut(total, parts))


def place_evenly(replicas: int, world_size: int) -> list[range]:
    """Return each rank's replicas, as even as possible.

    Raises:
        ConfigError: ``world_size`` is larger than ``replicas``, or one of them is below 1.
    """
    check_world(replicas, world_size)
    return cut(replicas, world_size)


@functools.lru_cache(maxsize=64)
def place_whole(replicas: int, world_size: int) -> tuple[range, ...]:
    """Return each rank's replicas so that ranks send few partial sums, and none computes more than evenly.

    In the owner-computes exchange of M ranks, one that has k subtrees sends k + 1 times (M - 1) / M of the gradient,
    and receives no more than the one that sends most. Of all contiguous placements with the smallest k, the one whose
    ranks differ least; the even one where no other has a smaller k, or there are too many to look.

    Raises:
        ConfigError: See `place_evenly`.

    Example:
        >>> place_whole(10, 3)  # evenly 4, 3, 3: two subtrees each on the last two
        (range(0, 4), range(4, 8), range(8, 10))
    """
    even = place_evenly(replicas, world_size)
    if replicas * world_size > _MOST_TO_SEARCH:
        return tuple(even)
    for limit in range(1, max(len(nodes(part.start, part.stop, replicas)) for part in even)):
        if found := _place_within(replicas, world_size, len(even[0]), limit):
            return found
    return tuple(even)


def _place_within(replicas: int, world_size: int, most: int, limit: int) -> tuple[range, ...]:
    """Return the most even placement of at most so many replicas and subtrees a rank; empty where there is none."""
    # From the last rank to the first: where its replicas start -> (sum of squares, how they and all later ones lie).
    best: dict[int, tuple[int, tuple[range, ...]]] = {replicas: (0, ())}
    for left in range(world_size - 1, -1, -1):
        found: dict[int, tuple[int, tuple[range, ...]]] = {}
        for stop, (squares, later) in best.items():
            for start in range(max(left, stop - most), stop):
                if start > left * most or len(nodes(start, stop, replicas)) > limit:
                    continue
                total = squares + (stop - start) ** 2
                if start not in found or total < found[start][0]:
                    found[start] = total, (range(start, stop), *later)
        best = found
    return best.get(0, (0, ()))[1]


def place_by_shares(replicas: int, shares: Sequence[float]) -> list[range]:
    """Return each rank's replicas in proportion to `shares`, at least one each (largest remainders first).

    Raises:
        ConfigError: More ranks than replicas, or a share that is not positive and finite.

    Example:
        >>> place_by_shares(8, [1, 2, 1])
        [range(0, 2), range(2, 6), range(6, 8)]
    """
    check_world(replicas, len(shares))
    if not all(math.isfinite(share) and share > 0 for share in shares):
        raise ConfigError(f"expected finite shares above 0, got {list(shares)}.")
    # One replica each first; the rest by largest remainder, ties to the lower rank.
    exact = [share / sum(shares) * replicas for share in shares]
    counts = [max(1, int(want)) for want in exact]
    while sum(counts) > replicas:
        givers = [rank for rank, count in enumerate(counts) if count > 1]
        counts[max(givers, key=lambda rank: (counts[rank] - exact[rank], rank))] -= 1
    while sum(counts) < replicas:
        counts[max(range(len(counts)), key=lambda rank: (exact[rank] - counts[rank], -rank))] += 1
    starts = [sum(counts[:rank]) for rank in range(len(counts) + 1)]
    return [range(starts[rank], starts[rank + 1]) for rank in range(len(counts))]


def check_world(replicas: int, world_size: int) -> None:
    """Refuse a world that cannot host the replicas."""
    if replicas < 1:
        raise ConfigError(f"expected replicas >= 1, got {replicas}.")
    if not 1 <= world_size <= replicas:
        raise ConfigError(
            f"expected at least one worker and at most one for each of {replicas} replicas, got {world_size}: a worker "
            f"without a replica has no work. Hint: at most {replicas} workers (-n {replicas}), or a new run with "
            f"replicas={world_size} or more (which changes the result)."
        )
