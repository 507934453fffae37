"""Distributed metrics as exact sums: integers, and floats added without rounding.

Every metric is a few sums over samples. Sums of integers and `ExactSum` are associative, so shards can be added in
any order and any grouping with the same bits; a ratio is formed once, at the end. Never an average of averages.
"""

import math
from abc import ABC, abstractmethod
from typing import final

from torch import Tensor

from unisono.errors import ConfigError

_SHIFT = 1074  # every float64 is a whole multiple of 2**-1074


@final
class ExactSum:
    """A sum of float64 values without rounding, as one whole number of units of 2**-1074.

    Example:
        >>> total = ExactSum()
        >>> for value in (1e100, 1.0, -1e100):
        ...     total.add(value)
        >>> float(total)
        1.0
    """

    def __init__(self, units: int = 0) -> None:
        self.units = units

    def add(self, value: float) -> None:
        """Add one finite value.

        Raises:
            OverflowError: The value is infinite.
            ValueError: The value is NaN.
        """
        numerator, denominator = value.as_integer_ratio()
        self.units += numerator * ((1 << _SHIFT) // denominator)

    def __float__(self) -> float:
        return self.units / (1 << _SHIFT)  # whole-number division rounds once, correctly


class Metric(ABC):
    """Sums over samples, and one number made from them.

    Attributes:
        state: The sums: whole numbers, added element by element when shards are merged.
    """

    state: list[int]

    @abstractmethod
    def update(self, output: Tensor, target: Tensor) -> None:
        """Add the samples of one micro-batch: `output` (n, ...) and `target` (n, ...)."""

    @abstractmethod
    def compute(self) -> float:
        """Return the metric over all samples seen."""

    def reset(self) -> None:
        """Forget all samples."""
        self.state = [0] * len(self.state)

    def merge(self, state: list[int]) -> None:
        """Add the sums of another shard."""
        self.state = [mine + other for mine, other in zip(self.state, state, strict=True)]


@final
class Accuracy(Metric):
    """The share of samples whose largest output is the target class.

    Outputs are scores (n, classes), targets int64 (n,). Equal scores count for the lowest class.
    """

    def __init__(self) -> None:
        self.state = [0, 0]

    def update(self, output: Tensor, target: Tensor) -> None:
        """See `Metric.update`."""
        if output.ndim != 2 or target.shape != output.shape[:1]:
            raise ConfigError(
                f"Accuracy expects outputs (n, classes) and targets (n,), "
                f"got {tuple(output.shape)} and {tuple(target.shape)}."
            )
        self.merge([int((output.argmax(dim=1) == target).sum()), len(target)])

    def compute(self) -> float:
        """See `Metric.compute`."""
        correct, total = self.state
        return correct / total if total else 0.0


@final
class Mean(Metric):
    """The mean over samples of a per-sample value, or of a micro-batch mean weighted by its samples.

    NaN where a value is NaN or infinite.

    Call ``update(values, target)``: `values` is (n,) or one element that stands for the mean of ``len(target)``
    samples.
    """

    def __init__(self) -> None:
        self.state = [0, 0, 0]

    def update(self, output: Tensor, target: Tensor) -> None:
        """See `Metric.update`."""
        if output.numel() != 1 and output.shape != (len(target),):
            raise ConfigError(
                f"Mean expects one element or values ({len(target)},) for {len(target)} targets, "
                f"got {tuple(output.shape)}."
            )
        values = [output.double().item() * len(target)] if output.numel() == 1 else output.double().tolist()
        total = ExactSum()
        for value in filter(math.isfinite, values):
            total.add(value)
        self.merge([total.units, len(target), sum(not math.isfinite(value) for value in values)])

    def compute(self) -> float:
        """See `Metric.compute`."""
        units, count, num_bad = self.state
        if num_bad:
            return math.nan
        return units / (count << _SHIFT) if count else 0.0
