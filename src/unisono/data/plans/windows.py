"""Shuffle in two levels: shards change places, and samples within a window of some shards (pure).

A whole permutation would send every batch to every file. Here an epoch puts the shards in a random order, takes some of
them at a time, the window, and permutes the samples of the window: so only its files are open, or unpacked, at once.
Each sample comes exactly once an epoch; a place costs O(log shards). Imports NumPy only.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from unisono.data.lengths import Indices
from unisono.data.sampler import permute
from unisono.determinism.seeding import mix
from unisono.errors import DataError
from unisono.options.quantities import COUNT


class _Epoch(NamedTuple):
    """The shards of one epoch in their order, and the places at which they and the windows begin."""

    number: int
    shards: Indices  # (n,): numbers of shards
    starts: Indices  # (n + 1,): where each begins
    windows: Indices  # (ceil(n / w) + 1,): where each window begins


@final
class WindowOrder:
    """An order in two levels.

    Args:
        counts: Samples of each shard; sample numbers go through the shards in this order.
        window: Shards that are shuffled together.
        seed: The run's seed.
        shuffle: False: the shards and samples as they lie.

    Raises:
        DataError: There is no sample.
    """

    def __init__(self, counts: Sequence[int], window: int, *, seed: int, shuffle: bool) -> None:
        self._counts = np.asarray(counts, dtype=np.int64)
        self._base = _starts(self._counts)
        self.num_samples = int(self._base[-1])
        if not self.num_samples:
            raise DataError(f"expected at least one sample, got {len(self._counts)} shards without any.")
        self._window, self._seed, self._shuffle = window, seed, shuffle
        self.score: dict[str, Any] = {"order": "windows", "window": window}
        self._known: _Epoch | None = None

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """See `Order.at`."""
        if not self._shuffle:
            return np.arange(start, stop)
        known = self._known
        if known is None or known.number != epoch:
            known = self._known = self._arranged(epoch)
        numbers = np.empty(stop - start, dtype=np.int64)
        done = start
        while done < stop:
            window = int(np.searchsorted(known.windows, done, side="right")) - 1
            first, end = int(known.windows[window]), int(known.windows[window + 1])
            upto = min(stop, end)
            key = mix(self._seed, "window", epoch, window)
            places = first + permute(np.arange(done - first, upto - first), end - first, key)
            shard = np.searchsorted(known.starts, places, side="right") - 1
            numbers[done - start : upto - start] = self._base[known.shards[shard]] + places - known.starts[shard]
            done = upto
        return numbers

    def _arranged(self, epoch: int) -> _Epoch:
        """Return the shards of an epoch; empty ones are left out, so that no window is without samples."""
        filled = np.flatnonzero(self._counts)
        shards = filled[permute(np.arange(len(filled)), len(filled), mix(self._seed, "shards", epoch))]
        starts = _starts(self._counts[shards])
        return _Epoch(epoch, shards, starts, np.append(starts[:-1][:: self._window], starts[-1]))


@final
class Windows:
    """The plan of a `WindowOrder`.

    Args:
        counts: Samples of each shard.
        window: Shards that are shuffled together.

    Raises:
        ConfigError: `window` is no whole number above 0.
    """

    def __init__(self, counts: Sequence[int], window: int) -> None:
        self.counts, self.window = counts, COUNT.take("window", window)

    def order(self, source: Any, *, seed: int, shuffle: bool) -> WindowOrder:
        """See `Plan.order`."""
        return WindowOrder(self.counts, self.window, seed=seed, shuffle=shuffle)


def _starts(counts: Indices) -> Indices:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
