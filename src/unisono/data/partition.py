"""Cut a data set into named-by-index parts, once, reproducibly (pure).

The way "distributed deep learning from scratch" tutorials share out data: shuffle the indices with a seed, cut them by
fractions. Here no sample is lost when the fractions do not divide the length.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, final

from unisono.errors import ConfigError


@final
class Partition:
    """A view of some samples of `data`: those at `index`, in its order."""

    def __init__(self, data: Any, index: Sequence[int]) -> None:
        self.data = data
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return Partition(self.data, self.index[position])
        return self.data[self.index[position]]

    def __iter__(self) -> Iterator[Any]:
        return (self.data[index] for index in self.index)


@final
class DataPartitioner:
    """Shuffles the indices of `data` with `seed` and cuts them into parts by fractions.

    Args:
        data: Anything with a length and integer items.
        sizes: The fraction of each part; each at least 0, together at most 1. Together 1 means: every sample is in
            exactly one part.
        seed: Seed of the shuffle (Python's ``random.Random``).

    Raises:
        ConfigError: A fraction is negative, or they add up to more than 1.

    Example:
        >>> parts = DataPartitioner(range(1, 11), [0.7, 0.2, 0.1], seed=1234)
        >>> [list(parts.use(part)) for part in range(3)]
        [[3, 9, 4, 6, 7, 5, 10], [1, 2], [8]]
    """

    def __init__(self, data: Any, sizes: Sequence[float] = (0.7, 0.2, 0.1), seed: int = 1234) -> None:
        if any(not size >= 0 for size in sizes) or math.fsum(sizes) > 1 + 1e-9:
            raise ConfigError(f"expected fractions >= 0 that add up to at most 1, got {list(sizes)}.")
        indices = list(range(len(data)))
        random.Random(seed).shuffle(indices)
        # Cumulative ends, rounded to the nearest: the parts meet without a gap, and 1.0 ends at the last sample.
        ends = [round(math.fsum(sizes[: part + 1]) * len(indices)) for part in range(len(sizes))]
        self.data = data
        self.partitions = [indices[start:end] for start, end in itertools.pairwise([0, *ends])]

    def use(self, partition: int) -> Partition:
        """Return part number `partition`."""
        return Partition(self.data, self.partitions[partition])
