"""Which contiguous range of replicas each rank hosts, and how a batch is cut (pure).

In: numbers of the score and of today's world. Out: ranges. Nothing here may change a bit of the result:
placement only says who computes a replica.
"""

import functools
import math
from collections.abc import Sequence

from unisono.errors import ConfigError


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
    """Refuse a world that cannot host the replicas.

    Raises:
        ConfigError: Not ``1 <= world_size <= replicas``.
    """
    if replicas < 1:
        raise ConfigError(f"expected replicas >= 1, got {replicas}.")
    if not 1 <= world_size <= replicas:
        raise ConfigError(
            f"expected 1 <= world_size <= replicas, got world_size={world_size} and replicas={replicas}. "
            f"Hint: start at most {replicas} workers, or start a new run with replicas={world_size} or more."
        )
