"""The canonical binary tree: the one order in which the leaves of all replicas are added (pure).

A tree of ``leaves`` leaves has a node at level k for every aligned block ``[i * 2**k, (i + 1) * 2**k)``, cut
at ``leaves``; its value is the left half plus the right half, or the left half alone where the right one is empty.
Five leaves: ``((0 + 1) + (2 + 3)) + 4``. The shape depends on nothing but ``leaves``; which rank computes which node
cannot change a bit. Replicas without a sample are always the last ones, and dropping the last leaves of this tree gives
the tree of the remaining leaves: so a short batch is simply a tree with fewer leaves.

The order of summation is Merkle trees' (RFC 6962, section 2.1). Values are opaque: anything that `add` understands.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

Node = tuple[int, int]
"""A complete subtree, as the range ``(start, stop)`` of its leaves."""


def split(node: Node) -> int:
    """Return where a node of at least two leaves is cut: after the largest power of two below its length."""
    start, stop = node
    return start + (1 << ((stop - start - 1).bit_length() - 1))


def are_siblings(left: Node, right: Node, leaves: int) -> bool:
    """Whether two adjacent nodes are the two halves of one node in the tree of `leaves` leaves."""
    length = left[1] - left[0]
    is_power_of_two = length & (length - 1) == 0
    return (
        left[1] == right[0]
        and is_power_of_two
        and left[0] % (2 * length) == 0
        and right[1] == min(left[0] + 2 * length, leaves)
    )


def nodes(start: int, stop: int, leaves: int) -> list[Node]:
    """Return the fewest complete subtrees that cover the leaves ``start..stop-1``, left to right.

    At most ``2 * log2(leaves)`` of them; exactly one when the range is one subtree. Leaves at or after `leaves` are
    absent and skipped.

    Example:
        >>> nodes(0, 3, 8), nodes(3, 8, 8), nodes(4, 5, 5)
        ([(0, 2), (2, 3)], [(3, 4), (4, 8)], [(4, 5)])
    """
    stop = min(stop, leaves)
    found: list[Node] = []
    while start < stop:
        length = 1
        while start % (2 * length) == 0 and min(start + 2 * length, leaves) <= stop and start + length < leaves:
            length *= 2
        found.append((start, min(start + length, leaves)))
        start = found[-1][1]
    return found


@functools.lru_cache(maxsize=256)
def owned_nodes(placement: tuple[range, ...], leaves: int) -> tuple[tuple[Node, ...], ...]:
    """Return, for each rank, the subtrees that the leaves it hosts add up to."""
    return tuple(tuple(nodes(hosted.start, hosted.stop, leaves)) for hosted in placement)


def push(
    sums: list[tuple[Node, T]], leaf: int, value: T, leaves: int, add: Callable[[T, T], T],
    settle: Callable[[Node, T], T] | None = None,
) -> None:  # fmt: skip
    """Put the next leaf on a binary counter: what the tree allows to be added is added at once.

    Args:
        sums: Complete subtrees with their sums, left to right; changed.
        leaf: Index of the leaf, next to the last one on the counter.
        value: The leaf's value.
        leaves: Leaves of the whole tree.
        add: Returns left + right; may reuse the memory of both.
        settle: Returns what becomes of the sum of a node; None: it stays as it is.
    """
    sums.append(((leaf, leaf + 1), value))
    while len(sums) > 1 and are_siblings(sums[-2][0], sums[-1][0], leaves):
        right_node, right = sums.pop()
        left_node, left = sums.pop()
        node, total = (left_node[0], right_node[1]), add(left, right)
        sums.append((node, total if settle is None else settle(node, total)))


def accumulate(first: int, values: Iterable[T], leaves: int, add: Callable[[T, T], T]) -> list[tuple[Node, T]]:
    """Add consecutive leaves as far as the tree allows, holding few values at a time (a binary counter).

    Args:
        first: Index of the first leaf.
        values: The leaves' values, one after the other; consumed lazily.
        leaves: Leaves of the whole tree.
        add: Returns left + right; may reuse the memory of both.

    Returns:
        The complete subtrees with their sums, left to right: those that `nodes` names for this range.
    """
    sums: list[tuple[Node, T]] = []
    for leaf, value in enumerate(values, start=first):
        push(sums, leaf, value, leaves, add)
    return sums


def add_up(values: Sequence[T], add: Callable[[T, T], T], last: Callable[[T, T], T] | None = None) -> T:
    """Return the sum of the tree whose leaves are `values`, at least one; see `combine`."""
    return combine({(leaf, leaf + 1): value for leaf, value in enumerate(values)}, len(values), add, last)


def combine(
    partials: Mapping[Node, T],
    leaves: int,
    add: Callable[[T, T], T],
    last: Callable[[T, T], T] | None = None,
    root: Node | None = None,
    settle: Callable[[Node, T], T] | None = None,
) -> T:
    """Return the sum of the whole tree, or of one subtree, from the sums of subtrees that cover it.

    Args:
        partials: Sums of disjoint complete subtrees that together hold every leaf.
        leaves: Leaves of the whole tree, at least 1.
        add: Returns left + right.
        last: Does the root's addition in its place, for instance into memory that waits for the result.
        root: The subtree; None means the whole tree.
        settle: Returns what becomes of a sum that has been added here, by its node; None: it stays as it is.

    Raises:
        KeyError: A leaf is in no partial.
    """

    def value(node: Node) -> T:
        if node in partials:
            return partials[node]
        if node[1] - node[0] == 1:
            raise KeyError(f"leaf {node[0]} of {leaves} is in no partial: {sorted(partials)}")
        middle = split(node)
        addition = last if last is not None and node == top else add
        total = addition(value((node[0], middle)), value((middle, node[1])))
        return total if settle is None else settle(node, total)

    top = (0, leaves) if root is None else root
    return value(top)
