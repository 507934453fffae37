"""Which samples a step sees: a pure function of (seed, epoch, step), for any number of ranks.

The order of an epoch is a keyed permutation that is *computed*, never stored: any position of any epoch costs the
same, so resuming at a step is a matter of knowing its number. Every sample comes exactly once per epoch: none is
padded, repeated or dropped, unless that is asked for; the last batch may be short. Imports NumPy only.
"""

from collections.abc import Callable
from typing import final

import numpy as np
import numpy.typing as npt

from unisono.collectives.placement import parts_of
from unisono.data.lengths import Lengths, arrange_pool, deal
from unisono.data.plans.batch_schedule import BatchSchedule, Cuts, Stretch, schedule_of
from unisono.data.plans.plan import Order
from unisono.determinism.seeding import mix
from unisono.errors import ConfigError
from unisono.options.quantities import BATCHES, REPLICAS, SAMPLES

Indices = npt.NDArray[np.int64]

_ROUNDS = 8
_BLOCK = 1 << 14  # positions computed at once: amortises NumPy's cost per call
_AHEAD = 64  # batches cut at once, of no more positions: amortises Python's


def permute(positions: Indices, num_samples: int, key: int) -> Indices:
    """Return where a keyed pseudo-random permutation of ``range(num_samples)`` sends `positions`.

    A Feistel network over the next power of two, walked until the result is below `num_samples` (Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", 2002). O(1) per position, no table.

    Args:
        positions: int64 (n,), each in ``range(num_samples)``.
        num_samples: Size of the permuted range, at least 1.
        key: Its low 63 bits count.
    """
    bits = max(4, (num_samples - 1).bit_length())
    round_keys = [np.uint64(mix(key & 0x7FFFFFFFFFFFFFFF, "feistel", number)) for number in range(_ROUNDS)]
    values = _feistel(positions.astype(np.uint64), bits, round_keys)
    outside = np.flatnonzero(values >= num_samples)
    while len(outside):
        values[outside] = _feistel(values[outside], bits, round_keys)
        outside = outside[values[outside] >= num_samples]
    return values.astype(np.int64)


def _feistel(values: npt.NDArray[np.uint64], bits: int, round_keys: list[np.uint64]) -> npt.NDArray[np.uint64]:
    low_bits, high_bits = bits - bits // 2, bits // 2
    for round_key in round_keys:
        # (high | low) -> (low | high ^ f(low)): the halves change places, so their widths do too.
        low = values & np.uint64((1 << low_bits) - 1)
        high = values >> np.uint64(low_bits)
        mixed = (low ^ round_key) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        values = (low << np.uint64(high_bits)) | (high ^ (mixed & np.uint64((1 << high_bits) - 1)))
        low_bits, high_bits = high_bits, low_bits
    return values


@final
class ExactSampler:
    """The batches of a run, by step.

    Args:
        num_samples: Samples in the data set.
        batch_size: Samples per step, over all ranks; a `BatchSchedule` where they change.
        replicas: Parts each batch is cut into.
        seed: The run's seed.
        shuffle: Whether each epoch has its own random order; else the data set's.
        lengths: int64 (num_samples,): what each sample costs (tokens of a text, say). Micro-batches of a step then
            have about equal totals, and batches samples of similar length, see `length_pool`.
        length_pool: Batches that are sorted by length together; 0 and 1 leave each batch its random samples.
        order: Which sample stands at which place of an epoch, in place of the permutation; it has `num_samples`
            places.
        last: What becomes of the samples that do not fill an epoch's last batch: a ``short`` batch; ``drop``: they are
            left out (others in every epoch, if shuffled); ``join``: the batch before them takes them in.

    Raises:
        ConfigError: A number is below 1, `length_pool` negative, not one length per sample, or another `last`.
        DataError: Nothing is left of an epoch.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int | BatchSchedule,
        replicas: int = 1,
        *,
        seed: int = 0,
        shuffle: bool = True,
        lengths: Lengths | None = None,
        length_pool: int = 0,
        order: Order | None = None,
        last: str = "short",
    ) -> None:
        num_samples, self.schedule = SAMPLES.take("num_samples", num_samples), schedule_of(batch_size)
        replicas, length_pool = REPLICAS.take("replicas", replicas), BATCHES.take("length_pool", length_pool)
        if lengths is not None and order is None and len(lengths) != num_samples:
            raise ConfigError(f"expected {num_samples} lengths, one per sample, got {len(lengths)}.")
        self.num_samples = num_samples
        self.last = last
        self.cuts = Cuts(num_samples, self.schedule, last)
        self.batch_size = self.schedule.first
        self.replicas = replicas
        self.seed = seed
        self.shuffle = shuffle
        self.steps_per_epoch = self.cuts.steps_of(1)
        self._lengths = lengths
        self._length_pool = length_pool if shuffle and lengths is not None else 0
        self.order = order
        self._own_epochs: Callable[[int, int, int], Indices] | None = getattr(order, "epochs_at", None)
        self._pool: tuple[tuple[Stretch, int], Indices] | None = None
        self._block: tuple[int, int, Indices] | None = None
        self._cut: dict[int, tuple[int, Indices]] = {}
        self._newest: dict[int, tuple[int, Indices]] = {}

    def epoch_of(self, step: int) -> int:
        """Return the epoch (0-based) of `step` (1-based)."""
        return self.cuts.find(step)[0].epoch

    def batch(self, step: int) -> Indices:
        """Return the sample indices of `step` (1-based): int64, ``batch_size`` long but for an epoch's last."""
        return self.epoch_with_batch(step)[1][:]

    def epoch_with_batch(self, step: int) -> tuple[int, Indices]:
        """Return the epoch of `step` and its sample indices, which others are given too: slice before you write."""
        found = self._cut.get(step)
        return self._cut_from(step) if found is None else found

    def _cut_from(self, step: int) -> tuple[int, Indices]:
        stretch, index = self.cuts.find(step)
        ahead = 1 if self._lengths is not None else max(1, min(_AHEAD, _BLOCK // stretch.size))
        indices = range(index, min(index + ahead, stretch.batches))
        before = self._newest  # who hands batches out and who fetches them both ask, the one ahead of the other
        self._newest = {step - index + each: (stretch.epoch, self._batch(stretch, each)) for each in indices}
        self._cut = before | self._newest
        return self._newest[step]

    def _batch(self, stretch: Stretch, index: int) -> Indices:
        start, stop = stretch.places(index)
        if self._length_pool > 1:
            pool = index // self._length_pool
            before = stretch.places(pool * self._length_pool)[0]
            batch = self._sorted_pool(stretch, pool)[start - before : stop - before]
        else:
            batch = self._order(stretch.epoch, start, stop)
        return batch if self._lengths is None else deal(batch, self._lengths, self.replicas)

    def epochs(self, step: int) -> Indices | None:
        """Return the epoch of each sample of `step`, where they count their own; None: all that of the step."""
        if self._own_epochs is None:
            return None
        stretch, index = self.cuts.find(step)
        return self._own_epochs(stretch.epoch, *stretch.places(index))

    def micro_batches(self, step: int) -> list[Indices]:
        """Return the sample indices of each replica in `step`; the last ones may be empty."""
        batch = self.batch(step)
        return [batch[part.start : part.stop] for part in parts_of(len(batch), self.replicas)]

    def _sorted_pool(self, stretch: Stretch, number: int) -> Indices:
        """Return the samples of a pool of batches, arranged by length; a pool ends where the batch size changes."""
        if self._pool is None or self._pool[0] != (stretch, number):
            assert self._lengths is not None
            pool = self._order(stretch.epoch, *stretch.places(number * self._length_pool, self._length_pool))
            places = np.arange(len(pool) // stretch.size)
            if len(places):
                where = (number, stretch.start) if stretch.start else (number,)
                places = permute(places, len(places), mix(self.seed, "pool", stretch.epoch, *where))
            self._pool = (stretch, number), arrange_pool(pool, self._lengths, stretch.size, places)
        return self._pool[1]

    def _order(self, epoch: int, start: int, stop: int) -> Indices:
        if not self.shuffle and self.order is None:
            return np.arange(start, stop)
        block = self._block
        if block is None or block[0] != epoch or not (block[1] <= start and stop <= block[1] + len(block[2])):
            last = min(self.num_samples, start + max(_BLOCK, stop - start))
            if self.order is not None:
                found = self.order.at(epoch, start, last)
            else:
                found = permute(np.arange(start, last), self.num_samples, mix(self.seed, "order", epoch))
            block = self._block = (epoch, start, found)
        return block[2][start - block[1] : stop - block[1]]
