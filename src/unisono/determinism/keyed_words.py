"""Random words of 64 bits in bulk: a pure function of a start and of counters (pure; imports NumPy only)."""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def keyed_words(start: int, counters: Words) -> Words:
    """Return a well-mixed word for each counter; distinct counters below 2**64 give distinct words.

    SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) over a counter.

    Args:
        start: 64 bits, as `unisono.determinism.seeding.mix` gives them.
        counters: uint64, of any shape.
    """
    # Whole numbers of 64 bits wrap around; arrays do so silently.
    z: Words = (counters * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)).astype(np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keyed_places(start: int, indices: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Return for each index a place in ``range(count)``, every place with exactly the same chance.

    A word at or above the largest multiple of `count` is drawn again, from a counter that no other index has.

    Args:
        start: As in `keyed_words`.
        indices: int64 (n,), each in ``range(2**40)``.
        count: From 1 to 2**63.
    """
    counters = indices.astype(np.uint64)
    words = keyed_words(start, counters)
    beyond = (1 << 64) % count  # so many of the highest words would make the first places likelier
    again = 0
    while beyond and len(redrawn := np.flatnonzero(words >= np.uint64((1 << 64) - beyond))):
        again += 1
        words[redrawn] = keyed_words(start, counters[redrawn] + np.uint64(again << 40))
    return (words % np.uint64(count)).astype(np.int64)
