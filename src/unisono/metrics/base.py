"""Distributed metrics as exact sums: integers, and floats added without rounding.

Every metric is a few sums over samples. Sums of integers and `ExactSum` are associative, so shards can be added in
any order and any grouping with the same bits; a ratio is formed once, at the end. Never an average of averages.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from unisono.collectives.places import Distributed
from unisono.errors import ConfigError
from unisono.options.keywords import AnswersInit

_SHIFT = 1074  # every float64 is a whole multiple of 2**-1074

Value = float | dict[str, float]
"""What a metric computes: one number, or several by name (one per label, say)."""


def units_of(value: float) -> int:
    """Return a finite float64 in units of 2**-1074."""
    numerator, denominator = value.as_integer_ratio()
    return numerator * ((1 << _SHIFT) // denominator)


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
        self.units += units_of(value)

    def __float__(self) -> float:
        return self.units / (1 << _SHIFT)  # whole-number division rounds once, correctly


class Metric(Distributed, AnswersInit, ABC):
    """Sums over samples, and one number (or several by name) made from them.

    Attributes:
        state: Whole numbers. Where `merge` is not overridden they are sums, added element by element.
    """

    state: list[int]

    @abstractmethod
    def update(self, output: Tensor, target: Tensor) -> None:
        """Add the samples of one micro-batch: `output` (n, ...) and `target` (n, ...)."""

    @abstractmethod
    def compute(self) -> Value:
        """Return the metric over all samples seen."""

    def reset(self) -> None:
        """Forget all samples."""
        self.state = [0] * len(self.state)

    def merge(self, state: list[int]) -> None:
        """Add the sums of another shard, the shard of the batches that follow those seen so far."""
        self.state = [mine + other for mine, other in zip(self.state, state, strict=True)]


@final
class Accuracy(Metric):
    """The share of samples whose target is among the `top_k` largest outputs.

    Outputs are scores (n, classes, ...), targets int64 (n, ...). Equal scores count for the lowest class; NaN is
    never a hit.

    Args:
        top_k: How many of the largest outputs count.
        ignore_index: Targets with this value are left out (padding).

    Raises:
        ConfigError: ``top_k < 1``; in `update`: other shapes.
    """

    def __init__(self, top_k: int = 1, *, ignore_index: int | None = None) -> None:
        if top_k < 1:
            raise ConfigError(f"expected top_k >= 1, got {top_k}.")
        self.state = [0, 0]
        self._top_k = top_k
        self._ignore_index = ignore_index

    def update(self, output: Tensor, target: Tensor) -> None:
        if output.ndim < 2 or target.shape != output.shape[:1] + output.shape[2:]:
            raise ConfigError(
                f"Accuracy expects outputs (n, classes, ...) and targets (n, ...), "
                f"got {tuple(output.shape)} and {tuple(target.shape)}.{_hint(output, target)}"
            )
        scores, target = output.movedim(1, -1).reshape(-1, output.shape[1]), target.reshape(-1)
        if self._ignore_index is not None:
            scores, target = scores[target != self._ignore_index], target[target != self._ignore_index]
        check_classes("targets", target, scores.shape[1])
        if self._top_k == 1:
            hits = (scores.argmax(dim=1) == target) & ~scores.isnan().any(dim=1)
        else:
            own = scores.gather(1, target[:, None])
            lower = torch.arange(scores.shape[1], device=scores.device) < target[:, None]
            ahead = ((scores > own) | ((scores == own) & lower)).sum(dim=1)
            hits = (ahead < self._top_k) & ~scores.isnan().any(dim=1)
        self.merge([int(hits.sum()), len(target)])

    def compute(self) -> float:
        correct, total = self.state
        return correct / total if total else 0.0


def num_samples(target: Any) -> int:
    """Return how many samples a target is of: its length, or that of what a dictionary holds."""
    if isinstance(target, PackedSequence):
        return int(target.batch_sizes[0])
    if not isinstance(target, Mapping):
        return len(target)
    counts = {num_samples(value) for value in target.values() if not isinstance(value, Tensor) or value.dim()}
    if len(counts) != 1:
        raise ConfigError(
            f"expected a target whose values have one length, that of the micro-batch, got {sorted(counts)} in "
            f"{', '.join(map(str, target))}. Hint: let predict return the target alone."
        )
    return counts.pop()


class Mean(Metric):
    """The mean over samples of a per-sample value, or of a micro-batch mean weighted by its samples.

    NaN where a value is NaN or infinite.

    Call ``update(values, target)``: `values` is (n,) or one element that stands for the mean of ``len(target)``
    samples.
    """

    def __init__(self) -> None:
        self.state = [0, 0, 0]

    def update(self, output: Tensor, target: Tensor) -> None:
        count = num_samples(target)
        if output.numel() != 1 and output.shape != (count,):
            raise ConfigError(
                f"Mean expects one element or values ({count},) for {count} targets, got {tuple(output.shape)}."
            )
        values = [output.double().item() * count] if output.numel() == 1 else output.double().tolist()
        self.merge(mean_state(values, count))

    def compute(self) -> float:
        return mean_of(self.state)


def mean_state(values: list[float], count: int) -> list[int]:
    """Return what a mean is made of: the exact sum in units of 2**-1074, the count, how many are not finite."""
    total = ExactSum()
    for value in filter(math.isfinite, values):
        total.add(value)
    return [total.units, count, sum(not math.isfinite(value) for value in values)]


def mean_of(state: list[int]) -> float:
    """Return the mean that `mean_state` stands for: 0 of nothing, NaN where a value was not finite."""
    units, count, num_bad = state
    if num_bad:
        return math.nan
    return units / (count << _SHIFT) if count else 0.0


def class_dim(output: Tensor, target: Tensor, dim: int | None, what: str) -> int:
    """Return the dimension of scores (n, classes, ...) or (n, ..., classes) that the classes lie along: 1 or the last.

    Args:
        output: Scores; one dimension more than `target`.
        target: (n, ...).
        dim: What the caller has said: 1, -1 or that number; None: whichever fits the targets.
        what: Who asks, for messages.

    Raises:
        ConfigError: Neither fits, or both do and `dim` does not say which is meant.
    """
    last = output.ndim - 1
    if output.ndim == target.ndim + 1 and output.ndim >= 2:
        fits = [at for at in sorted({1, last}) if output.shape[:at] + output.shape[at + 1 :] == target.shape]
        if dim is not None:
            fits = [at for at in fits if at == dim % output.ndim]
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise ConfigError(
                f"{what} got scores {tuple(output.shape)} for targets {tuple(target.shape)}: the classes may lie along "
                f"dimension 1 or {last}. Hint: say which, {what}(..., dim=1) or {what}(..., dim=-1)."
            )
    raise ConfigError(
        f"{what} expects scores (n, classes, ...) or (n, ..., classes){'' if dim is None else f' with dim={dim}'} for "
        f"targets (n, ...), got {tuple(output.shape)} and {tuple(target.shape)}."
    )


def check_dim(dim: int | None) -> None:
    """Refuse (`ConfigError`) a dimension of classes that is neither the second nor the last."""
    if dim not in (None, 1, 2, -1):
        raise ConfigError(f"expected dim=1, dim=2 or dim=-1 (or None: whichever fits), got dim={dim!r}.")


def check_classes(what: str, classes: Tensor, num_classes: int) -> None:
    """Refuse class numbers outside ``range(num_classes)``, which would count as misses or as other classes."""
    if len(classes) and not (int(classes.min()) >= 0 and int(classes.max()) < num_classes):
        raise ConfigError(
            f"expected {what} in 0..{num_classes - 1}, got {int(classes.min())}..{int(classes.max())}. "
            "Hint: ignore_index= leaves padded targets out."
        )


def _hint(output: Tensor, target: Tensor) -> str:
    """Return what usually makes these shapes: classes in place of scores, one-hot targets, or the other order."""
    if output.shape == target.shape and not output.is_floating_point():
        return " Hint: the scores of all classes, model(micro.x), without argmax()."
    if output.shape == target.shape and output.ndim > 1:
        return " Hint: targets as class numbers: target.argmax(1)."
    if target.ndim > 1 and output.shape == target.shape[:1] + target.shape[2:]:
        return " Hint: outputs first: (model(micro.x), micro.y)."
    return ""
