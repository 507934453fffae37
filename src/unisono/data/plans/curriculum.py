"""Easy samples first: each epoch is made of the easiest share of the samples, which grows (pure, NumPy only)."""

import bisect
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np

from unisono.data.lengths import Indices
from unisono.data.plans.weighted import checked_numbers
from unisono.data.sampler import permute
from unisono.determinism.seeding import mix
from unisono.errors import ConfigError, DataError
from unisono.options.quantities import EPOCHS, FRACTION, SAMPLES, shown

_DONE, _SHARE = replace(EPOCHS, low=0), replace(FRACTION, above=True)


@final
class CurriculumOrder:
    """The order of a `Curriculum`.

    Args:
        ranked: int64 (n,): the samples from the easiest to the hardest.
        counts: How many of them count from so many epochs on; 0 is among these.
        num_samples: Places of an epoch.
        seed: The run's seed.
        shuffle: Whether each pass over them has its own order; else it goes from easy to hard.
    """

    def __init__(
        self, ranked: Indices, counts: Mapping[int, int], num_samples: int, *, seed: int, shuffle: bool
    ) -> None:
        self.num_samples = num_samples
        digest = hashlib.sha256(ranked.astype("<i8").tobytes()).hexdigest()[:16]
        pairs = [list(pair) for pair in counts.items()]
        self.score: dict[str, Any] = {
            "order": "curriculum", "difficulty": digest, "counts": pairs, "num_samples": num_samples,
        }  # fmt: skip
        self._ranked, self._counts, self._starts = ranked, [*counts.values()], [*counts]
        self._seed, self._shuffle = seed, shuffle

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """See `Order.at`."""
        count = self._counts[bisect.bisect_right(self._starts, epoch) - 1]
        passes, places = np.divmod(np.arange(start, stop), count)
        for one in np.unique(passes).tolist() if self._shuffle else ():
            own = passes == one
            places[own] = permute(places[own], count, mix(self._seed, "curriculum", epoch, one))
        found: Indices = self._ranked[places]
        return found

    def epochs_at(self, epoch: int, start: int, stop: int) -> Indices:
        """See `HasEpochs.epochs_at`: a sample that comes twice in an epoch is changed in two ways."""
        return np.arange(start, stop) + epoch * self.num_samples


@final
class Curriculum:
    """A plan: an epoch is made of the easiest samples, of more and more of them.

    Within an epoch the chosen samples come equally often (to one), each pass over them in an order of its own: with all
    of them, each once. A pure function of (seed, epoch, place). Bengio et al., "Curriculum Learning", ICML 2009.

    Args:
        difficulty: A number for each sample, small ones easy; equal ones by their place in the data.
        shares: From how many epochs are done, to the share of the samples that count then, above 0; 0 is among them.
        num_samples: Places of an epoch; None: as many as there are samples.

    Raises:
        DataError: A difficulty is not finite.
        ConfigError: `shares` say nothing of the beginning, or a number is out of range.

    Example:
        >>> plan = unisono.Curriculum(lengths, {0: 0.25, 2: 0.5, 4: 1.0})  # doctest: +SKIP
        >>> loader = run.loader(train_set, batch_size=256, plan=plan)
    """

    def __init__(self, difficulty: Any, shares: Mapping[int, float], *, num_samples: int | None = None) -> None:
        values = checked_numbers("difficulties", difficulty)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise DataError(f"expected finite difficulties, got {values[bad[0]]} for sample {bad[0]}.")
        if not isinstance(shares, Mapping) or 0 not in shares:
            raise ConfigError(f"expected shares from epoch 0 on, as in {{0: 0.25, 4: 1.0}}, got {shown(shares)}.")
        taken = {_DONE.take("epochs done", done): _SHARE.take("a share", share) for done, share in shares.items()}
        self._ranked = np.argsort(values, kind="stable")
        self._counts = {done: int(np.ceil(share * len(values))) for done, share in sorted(taken.items())}
        self._num_samples = SAMPLES.maybe("num_samples", num_samples)

    def order(self, source: Any, *, seed: int, shuffle: bool) -> CurriculumOrder:
        """See `Plan.order`.

        Raises:
            DataError: Not as many difficulties as samples.
        """
        if len(self._ranked) != len(source):
            raise DataError(f"expected {len(source)} difficulties, one per sample, got {len(self._ranked)}.")
        size = self._num_samples or len(self._ranked)
        return CurriculumOrder(self._ranked, self._counts, size, seed=seed, shuffle=shuffle)
