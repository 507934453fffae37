"""Several data sets mixed by weights: exact whole numbers of each in every period, each with its own passes.

In: data sets and weights. Out: one data set, its samples numbered through, with a plan: the places are cut into periods
of some hundred, each with the same whole number of places for every data set, permuted. So what comes from where at a
place, and how often it has come before, is known from the place alone.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, final

import numpy as np

from unisono.data.datasets import KeyedDataset, part_of
from unisono.data.lengths import Indices
from unisono.data.loader import check_dataset
from unisono.data.plans.draws import shuffled_rows
from unisono.data.plans.plan import HasEpochs, Order, Plan
from unisono.data.sampler import permute
from unisono.determinism.seeding import mix
from unisono.errors import ConfigError, DataError
from unisono.options.quantities import SAMPLES

_LONGEST = 10_000
_SHORTEST = 256


def counts_of(weights: Sequence[float]) -> list[int]:
    """Return how many places of a period each weight gets, in the smallest period of 256 or more that is exact.

    Where none of up to 10,000 places is: of 10,000, by largest remainders.

    Raises:
        DataError: A weight is so small that it gets no place.
    """
    parts = [Fraction(weight).limit_denominator(_LONGEST) for weight in weights]
    whole = sum(parts)
    shares = [part / whole for part in parts] if whole else parts
    least = math.lcm(*(share.denominator for share in shares))
    if least <= _LONGEST:
        period = least * -(-_SHORTEST // least)
        counts = [int(share * period) for share in shares]
    else:
        exact = [weight / math.fsum(weights) * _LONGEST for weight in weights]
        counts = [int(share) for share in exact]
        by_remainder = sorted(range(len(exact)), key=lambda at: (counts[at] - exact[at], at))
        for at in by_remainder[: _LONGEST - sum(counts)]:
            counts[at] += 1
    for weight, count in zip(weights, counts, strict=True):
        if not count:
            raise DataError(
                f"expected weights of which each gets one of {_LONGEST:,} samples, got {weight:g} beside "
                f"{max(weights):g}. Hint: a larger weight, or leave that data set out."
            )
    return counts


@final
class MixtureOrder:
    """The order of a `Mixture`.

    Args:
        orders: Of each data set.
        starts: int64 (n + 1,): the numbers at which the samples of each begin.
        counts: Places of each in a period.
        num_samples: Places of an epoch.
        seed: The run's seed.
        shuffle: Whether the places of a period are permuted; else the data sets follow one another in it.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        starts: Indices,
        counts: Sequence[int],
        num_samples: int,
        *,
        seed: int,
        shuffle: bool,
    ) -> None:
        self.num_samples = num_samples
        scores = [order.score for order in orders]
        self.score: dict[str, Any] = {
            "order": "mixture", "counts": list(counts), "num_samples": num_samples, "orders": scores,
        }  # fmt: skip
        self._orders, self._counts = orders, counts
        self._starts = np.cumsum([0, *counts])
        self._base = starts
        self._lengths = np.array([order.num_samples for order in orders])
        self._nested = {number: order for number, order in enumerate(orders) if isinstance(order, HasEpochs)}
        self._known: tuple[int, int, Indices, Indices] | None = None
        self._seed, self._shuffle = seed, shuffle

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """See `Order.at`."""
        return self._placed(epoch, start, stop)[0]

    def epochs_at(self, epoch: int, start: int, stop: int) -> Indices:
        """See `HasEpochs.epochs_at`: the passes of the data set that the sample is from."""
        if self._nested:
            return self._placed(epoch, start, stop)[1]
        whose, turns = self._turns(epoch, start, stop)
        passes: Indices = turns // self._lengths[whose]
        return passes

    def _placed(self, epoch: int, start: int, stop: int) -> tuple[Indices, Indices]:
        """Return samples and their passes."""
        whose, all_turns = self._turns(epoch, start, stop)
        samples, passes = np.empty_like(whose), np.empty_like(whose)
        for number, order in enumerate(self._orders):
            mine = np.flatnonzero(whose == number)
            if not len(mine):
                continue
            passes[mine], turns = np.divmod(all_turns[mine], order.num_samples)
            for one in np.unique(passes[mine]).tolist():
                of_pass = passes[mine] == one
                own = turns[of_pass]
                low, high = int(own.min()), int(own.max()) + 1
                samples[mine[of_pass]] = self._base[number] + order.at(one, low, high)[own - low]
                if number in self._nested:
                    passes[mine[of_pass]] = self._nested[number].epochs_at(one, low, high)[own - low]
        return samples, passes

    def _turns(self, epoch: int, start: int, stop: int) -> tuple[Indices, Indices]:
        """Return for each place the data set, and which turn of that one it is; places count on through the epochs."""
        begin, end, period = start + epoch * self.num_samples, stop + epoch * self.num_samples, int(self._starts[-1])
        first, last = begin // period, -(-end // period)
        known = self._known
        if known is None or known[:2] != (first, last):
            known = self._known = first, last, *self._dealt(first, last)
        cut = slice(begin - first * period, end - first * period)
        return known[2].reshape(-1)[cut], known[3].reshape(-1)[cut]

    def _dealt(self, first: int, stop: int) -> tuple[Indices, Indices]:
        """Return for each place of some periods the data set, and which turn of that one it is: int64 (periods, n)."""
        length = int(self._starts[-1])
        places = np.tile(np.arange(length), (stop - first, 1))
        if self._shuffle:
            places = shuffled_rows(first, stop, length, self._seed, "mixture")
        whose = np.searchsorted(self._starts, places, side="right") - 1
        turns = np.empty_like(places)
        for number, count in enumerate(self._counts):
            turns[whose == number] = np.arange(first * count, stop * count)
        return whose, turns


@final
class Mixture:
    """Several map-style data sets as one, mixed by weights.

    Of every period of places (256 to 10,000) each data set gets a whole number, exactly in proportion to the weights
    where a period allows it. Each has passes of its own: its samples come once each, in a new order, before one comes
    again, and random transforms are keyed by the pass. Any step is known from its number.

    Args:
        sources: A weight above 0 for each data set, in a dictionary or in pairs.
        num_samples: Samples of an epoch; None: as many as the data sets have together.

    Raises:
        ConfigError: Not data sets with weights, or one that changes its samples itself.
        DataError: A weight is not above 0 and finite, or a data set is empty.

    Example:
        >>> mixed = unisono.Mixture({web: 0.7, books: 0.3})  # doctest: +SKIP
        >>> loader = run.loader(mixed, batch_size=256)
    """

    def __init__(
        self, sources: Mapping[Any, float] | Iterable[tuple[Any, float]], *, num_samples: int | None = None
    ) -> None:
        pairs = list(sources.items() if isinstance(sources, Mapping) else sources)
        if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise ConfigError(
                f"expected data sets with weights, got {type(sources).__name__}. "
                "Hint: Mixture({web: 0.7, books: 0.3}), or pairs: Mixture([(web, 0.7), (books, 0.3)])."
            )
        self.sources = [source for source, _ in pairs]
        self.weights = [_weight(weight, number) for number, (_, weight) in enumerate(pairs)]
        for source in self.sources:
            check_dataset(source)
            if isinstance(source, KeyedDataset) and not getattr(source, "is_keyed_singly", False):
                raise ConfigError(
                    f"a {type(source).__name__} changes its samples at random by itself, which a mixture cannot key. "
                    "Hint: leave that to run.loader(..., transform=...)."
                )
        self._counts = counts_of(self.weights)
        self._starts = np.cumsum([0, *map(len, self.sources)])
        self._num_samples = SAMPLES.maybe("num_samples", num_samples)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Any:
        part, place = part_of(index, self._starts[1:])
        return self.sources[part][place]

    @property
    def plan(self) -> "Mixture":
        """The mixture itself: see `order`."""
        return self

    @property
    def fingerprint(self) -> list[dict[str, Any]]:
        """What the score says of each data set."""
        return [
            {
                "class": type(source).__qualname__,
                "num_samples": len(source),
                "fingerprint": getattr(source, "fingerprint", None),
            }
            for source in self.sources
        ]

    def order(self, source: Any, *, seed: int, shuffle: bool) -> MixtureOrder:
        """See `Plan.order`."""
        orders = [
            _order_of(one, seed=mix(seed, "source", number) >> 1, shuffle=shuffle)
            for number, one in enumerate(self.sources)
        ]
        return MixtureOrder(
            orders, self._starts, self._counts, self._num_samples or len(self), seed=seed, shuffle=shuffle
        )


@final
class _Permuted:
    """The plain order: a permutation of all samples."""

    def __init__(self, num_samples: int, *, seed: int, shuffle: bool) -> None:
        self.num_samples = num_samples
        self.score: dict[str, Any] = {"order": "permuted"}
        self._seed, self._shuffle = seed, shuffle

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        places = np.arange(start, stop)
        return permute(places, self.num_samples, mix(self._seed, "order", epoch)) if self._shuffle else places


def _order_of(source: Any, *, seed: int, shuffle: bool) -> Order:
    own = getattr(source, "plan", None)
    if isinstance(own, Plan):
        return own.order(source, seed=seed, shuffle=shuffle)
    return _Permuted(len(source), seed=seed, shuffle=shuffle)


def _weight(weight: Any, number: int) -> float:
    try:
        value = float(weight)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 < value < math.inf:
        raise DataError(f"expected a weight above 0 for each data set, got {weight!r} for number {number}.")
    return value
