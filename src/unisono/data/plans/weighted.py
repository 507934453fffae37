"""Samples drawn with replacement, each as often as its weight says: by key, so a step is known by its number (pure).

As torch's ``WeightedRandomSampler``, whose draws are a stream that no step can be found in. Imports NumPy only.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from unisono.data.lengths import Indices
from unisono.data.plans.draws import draws
from unisono.errors import ConfigError, DataError
from unisono.options.quantities import EPOCHS, SAMPLES

_MOST = 1 << 62


@final
class WeightedOrder:
    """The order of `Weighted`.

    Args:
        ends_at: Cumulative weights of an epoch, int64 (n,).
        digests: Of those of each epoch; later epochs have the last one's.
        num_samples: Draws of an epoch.
        seed: The run's seed.
    """

    def __init__(
        self, ends_at: Callable[[int], Indices], digests: Sequence[str], num_samples: int, *, seed: int
    ) -> None:
        self.num_samples = num_samples
        told = digests[0]
        if len(digests) > 1:
            told = f"{hashlib.sha256(' '.join(digests).encode()).hexdigest()[:16]} of {len(digests)} epochs"
        self.score: dict[str, Any] = {"order": "weighted", "weights": told, "num_samples": num_samples}
        self._ends_at, self._digests, self._seed = ends_at, digests, seed
        self._known: tuple[int, Indices] = -1, np.empty(0, np.int64)

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """See `Order.at`.

        Raises:
            DataError: The weights are others than when the plan was made.
        """
        number = min(epoch, len(self._digests) - 1)
        if self._known[0] != number:
            self._known = number, self._ends_at(number)
            if _digest(self._known[1]) != self._digests[number]:
                raise DataError(
                    f"the weights of epoch {number} are others than when the plan was made. Hint: a function of the "
                    "epoch alone; what has been learnt meanwhile cannot be in it."
                )
        ends = self._known[1]
        drawn = draws(self.epochs_at(epoch, start, stop), int(ends[-1]), self._seed, "weighted")
        return np.searchsorted(ends, drawn, side="right").astype(np.int64)

    def epochs_at(self, epoch: int, start: int, stop: int) -> Indices:
        """See `HasEpochs.epochs_at`: every draw is another one, so a sample that comes twice is changed in two ways."""
        return np.arange(start, stop) + epoch * self.num_samples


@final
class Weighted:
    """A plan: each place of an epoch gets a sample at random, with replacement, the likelier the larger its weight.

    A pure function of (seed, place): O(log n) a place, any step at once. Weights are kept as whole numbers: exactly,
    where they are whole, else to one part in 2**32 or better of the largest.

    Args:
        weights: One per sample, none negative or NaN; they need not add up to anything. 0: never. Or a function that
            returns them for an epoch (0-based): it depends on that alone, and is called again when the epoch comes.
        num_samples: Draws of an epoch; None: as many as there are samples.
        epochs: Of a function: for how many epochs it is asked; later ones have the last one's weights.

    Raises:
        DataError: A weight is negative or not finite, or all of an epoch are zero.
        ConfigError: A number is out of range, or `epochs` is not given for a function, or given for none.

    Example:
        >>> plan = unisono.Weighted.balanced([0, 0, 0, 1])  # doctest: +SKIP
        >>> loader = run.loader(train_set, batch_size=256, plan=plan)
    """

    def __init__(self, weights: Any, *, num_samples: int | None = None, epochs: int | None = None) -> None:
        if callable(weights) != (epochs is not None):
            raise ConfigError(
                "expected epochs= beside weights that are a function of the epoch, and only there. "
                "Hint: Weighted(lambda epoch: ..., epochs=10)."
            )
        self._num_samples = SAMPLES.maybe("num_samples", num_samples)
        if callable(weights):
            self._ends_at: Callable[[int], Indices] = lambda epoch: _ends_of(weights(epoch))
        else:
            ends = _ends_of(weights)
            self._ends_at = lambda _: ends
        numbers = range(1 if epochs is None else EPOCHS.take("epochs", epochs))
        sizes_and_digests = [(len(each), _digest(each)) for each in map(self._ends_at, numbers)]
        self._sizes, self._digests = ([*each] for each in zip(*sizes_and_digests, strict=True))

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
        for size in self._sizes:
            if size != len(source):
                raise DataError(
                    f"expected {len(source)} weights, one per sample, got {size}. "
                    "Hint: give a sample that is not to come the weight 0."
                )
        if not shuffle:
            raise DataError("expected shuffle=True beside Weighted, which draws at random. Hint: leave shuffle out.")
        return WeightedOrder(self._ends_at, self._digests, self._num_samples or len(source), seed=seed)


def checked_numbers(what: str, numbers: Any) -> npt.NDArray[Any]:
    """Return numbers, one per sample, as an array; `DataError` for anything else."""
    values = np.asarray(numbers)
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iufb":
        raise DataError(
            f"expected {what} as numbers, one per sample, got shape {values.shape} of {values.dtype}. "
            "Hint: a list, an array or a tensor on the CPU, of n numbers."
        )
    return values


def _ends_of(weights: Any) -> Indices:
    """Return cumulative whole weights; `DataError` where they are none."""
    values = checked_numbers("weights", weights)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise DataError(
            f"expected weights that are 0 or more, got {values[bad[0]]} for sample {bad[0]}; {len(bad)} are so. "
            "Hint: 0 leaves a sample out."
        )
    if not values.any():
        raise DataError(
            f"expected a weight above 0, got {len(values)} weights that are all 0. "
            "Hint: without plan= every sample comes once in an epoch."
        )
    ends: Indices = np.cumsum(_whole(values))
    return ends


def _digest(ends: Indices) -> str:
    return hashlib.sha256(ends.astype("<i8").tobytes()).hexdigest()[:16]


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
