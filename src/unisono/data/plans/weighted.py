"""Samples drawn with replacement, each as often as its weight says: by key, so a step is known by its number (pure).

As torch's ``WeightedRandomSampler``, whose draws are a stream that no step can be found in. Imports NumPy only.
"""

import hashlib
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from unisono.data.lengths import Indices
from unisono.data.plans.draws import draws
from unisono.errors import DataError
from unisono.options.quantities import SAMPLES

_MOST = 1 << 62


@final
class WeightedOrder:
    """The order of `Weighted`.

    Args:
        ends: int64 (n,): cumulative weights.
        num_samples: Draws of an epoch.
        seed: The run's seed.
    """

    def __init__(self, ends: Indices, num_samples: int, *, seed: int) -> None:
        self.num_samples = num_samples
        digest = hashlib.sha256(ends.astype("<i8").tobytes()).hexdigest()[:16]
        self.score: dict[str, Any] = {"order": "weighted", "weights": digest, "num_samples": num_samples}
        self._ends, self._seed = ends, seed

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """See `Order.at`."""
        drawn = draws(self.epochs_at(epoch, start, stop), int(self._ends[-1]), self._seed, "weighted")
        return np.searchsorted(self._ends, drawn, side="right").astype(np.int64)

    def epochs_at(self, epoch: int, start: int, stop: int) -> Indices:
        """See `HasEpochs.epochs_at`: every draw is another one, so a sample that comes twice is changed in two ways."""
        return np.arange(start, stop) + epoch * self.num_samples


@final
class Weighted:
    """A plan: each place of an epoch gets a sample at random, with replacement, the likelier the larger its weight.

    A pure function of (seed, place): O(log n) a place, any step at once. Weights are kept as whole numbers: exactly,
    where they are whole, else to one part in 2**32 or better of the largest.

    Args:
        weights: One per sample, none negative or NaN; they need not add up to anything. 0: never.
        num_samples: Draws of an epoch; None: as many as there are samples.

    Raises:
        DataError: A weight is negative or not finite, or all are zero.
        ConfigError: `num_samples` is out of range.

    Example:
        >>> plan = unisono.Weighted.balanced([0, 0, 0, 1])  # doctest: +SKIP
        >>> loader = run.loader(train_set, batch_size=256, plan=plan)
    """

    def __init__(self, weights: Any, *, num_samples: int | None = None) -> None:
        values = np.asarray(weights)
        if values.ndim != 1 or not len(values) or values.dtype.kind not in "iufb":
            raise DataError(
                f"expected weights as numbers, one per sample, got shape {values.shape} of {values.dtype}. "
                "Hint: a list, an array or a tensor on the CPU, of n numbers."
            )
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(bad):
            raise DataError(
                f"expected weights that are 0 or more, got {values[bad[0]]} for sample {bad[0]}; {len(bad)} are so."
            )
        if not values.any():
            raise DataError(f"expected a weight above 0, got {len(values)} weights that are all 0.")
        self._ends = np.cumsum(_whole(values))
        self._num_samples = SAMPLES.maybe("num_samples", num_samples)

    @classmethod
    def balanced(cls, classes: Any, *, num_samples: int | None = None) -> Self:
        """Return a plan that draws all classes equally often.

        Args:
            classes: The class of each sample: whole numbers or texts.
            num_samples: As above.
        """
        _, numbers, counts = np.unique(np.asarray(classes), return_inverse=True, return_counts=True)
        return cls(1.0 / counts[numbers], num_samples=num_samples)

    def order(self, source: Any, *, seed: int, shuffle: bool) -> WeightedOrder:
        """See `Plan.order`.

        Raises:
            DataError: Not as many weights as samples, or not to be shuffled.
        """
        if len(self._ends) != len(source):
            raise DataError(f"expected {len(source)} weights, one per sample, got {len(self._ends)}.")
        if not shuffle:
            raise DataError("expected shuffle=True beside Weighted, which draws at random. Hint: leave shuffle out.")
        return WeightedOrder(self._ends, self._num_samples or len(self._ends), seed=seed)


def _whole(values: npt.NDArray[Any]) -> Indices:
    """Return weights as whole numbers whose sum has at most 62 bits."""
    if values.dtype.kind != "f":
        if sum(values.tolist()) <= _MOST:
            return values.astype(np.int64)
    elif (values == np.rint(values)).all() and float(values.max()) * len(values) <= 1 << 52:
        return values.astype(np.int64)
    largest = _MOST >> max(10, (len(values) - 1).bit_length())
    shares = values.astype(np.float64) / float(values.max())
    whole: Indices = np.maximum(np.rint(shares * largest), values > 0).astype(np.int64)
    return whole
