"""How a flat buffer is cut for its exchange between ranks (pure).

In: its length and the number of ranks. Out: *buckets*, ranges that are summed one after the other, while later ones are
still computed; each is cut into as many equal *chunks* as there are ranks, and rank r owns chunk r. The sum of the tree
is per element, so no cut changes a bit.
"""

import functools

ALIGNMENT = 16
"""Elements to which slices and segments of flat buffers are rounded up: 64 bytes of float32."""

_LEAST_BYTES, _MOST_BYTES = 3 << 18, 1 << 22
_LEAST_CHUNK_BYTES = 1 << 16
_USUAL_BUCKETS = 6


def padded_length(length: int, world_size: int) -> int:
    """Return `length` rounded up so that every rank owns an equal, aligned slice."""
    unit = ALIGNMENT * world_size
    return -(-length // unit) * unit


@functools.lru_cache(maxsize=256)
def cut_into_buckets(length: int, world_size: int, item_bytes: int) -> tuple[range, ...]:
    """Cut a buffer into buckets, in the order in which they are exchanged: from its end to its start.

    Gradients arrive in the reverse order of the model's parameters. The last bucket is a small one: nothing is left to
    compute while it is on its way.

    Args:
        length: Elements of the buffer, a multiple of what `padded_length` rounds to.
        world_size: Ranks that exchange it.
        item_bytes: Bytes of an element.

    Example:
        >>> cut_into_buckets(1 << 20, 2, 4)[-2:], cut_into_buckets(64, 2, 4)
        ((range(32768, 235904), range(0, 32768)), (range(0, 64),))
    """
    if not length:
        return ()
    unit = ALIGNMENT * world_size
    wanted = min(max(length * item_bytes // _USUAL_BUCKETS, _LEAST_BYTES), _MOST_BYTES)
    wanted = max(wanted, _LEAST_CHUNK_BYTES * world_size)
    if length * item_bytes < 2 * wanted:
        return (range(length),)
    last = -(-_LEAST_CHUNK_BYTES * world_size // item_bytes // unit) * unit
    rest = length - last
    size = -(-rest // max(1, rest * item_bytes // wanted) // unit) * unit
    return *(range(max(last, stop - size), stop) for stop in range(length, last, -size)), range(last)
