"""Which rank speaks for which part of a buffer when ranks span several hosts (pure).

A buffer is cut into as many slices as there are ranks; rank r owns slice r, and each host has one *carrier* for every
slice: the owner itself on its own host, elsewhere one of the host's ranks, all of them in turn. Inside a host the
ranks bring their partials of a slice to its carrier, which adds them up as far as the canonical tree allows; those
sums alone cross to the owner, and its result comes back to the carriers.
"""

from collections.abc import Sequence

from unisono.collectives.tree import Node, nodes

Hosts = tuple[range, ...]
"""The ranks of each host, in order; together all ranks."""


def group_by_host(names: Sequence[str]) -> Hosts | None:
    """Return the ranks of each host from the ranks' host names; None where a host's ranks are not consecutive.

    Only consecutive ranks host consecutive replicas, which have sums in the tree.

    Example:
        >>> group_by_host(["a", "a", "b"]), group_by_host(["a", "b", "a"])
        ((range(0, 2), range(2, 3)), None)
    """
    starts = [rank for rank, name in enumerate(names) if rank == 0 or name != names[rank - 1]]
    if len(starts) != len(set(names)):
        return None
    return tuple(range(start, stop) for start, stop in zip(starts, [*starts[1:], len(names)], strict=True))


def host_of(hosts: Hosts, rank: int) -> int:
    """Return the index of a rank's host."""
    return next(index for index, ranks in enumerate(hosts) if rank in ranks)


def carrier(hosts: Hosts, host: int, part: int) -> int:
    """Return the rank of a host that carries a slice."""
    ranks = hosts[host]
    if part in ranks:
        return part
    foreign = part if part < ranks.start else part - len(ranks)
    return ranks[foreign % len(ranks)]


def carried(hosts: Hosts, rank: int) -> list[int]:
    """Return the slices that a rank carries, its own among them."""
    host = host_of(hosts, rank)
    return [part for part in range(hosts[-1].stop) if carrier(hosts, host, part) == rank]


def host_nodes(hosts: Hosts, placement: Sequence[range], leaves: int) -> list[list[Node]]:
    """Return, for each host, the subtrees that its ranks can add up together: the partials that cross."""
    return [nodes(placement[ranks.start].start, placement[ranks[-1]].stop, leaves) for ranks in hosts]
