"""Counts of labels: confusion matrix, precision, recall, F1."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, final, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.errors import ConfigError
from unisono.metrics.base import Metric, Value, check_classes

Average = Literal["macro", "micro", "weighted", "none"]
Table = npt.NDArray[np.int64]


class CountTable(Metric):
    """Counts in one int64 array of fixed shape: the base of the metrics below."""

    def __init__(self, *shape: int) -> None:
        self._table: Table = np.zeros(shape, dtype=np.int64)

    @property
    def counts(self) -> Table:
        """The counts."""
        return self._table

    @property
    def state(self) -> list[int]:
        """The counts, row by row."""
        flat: list[int] = self._table.reshape(-1).tolist()
        return flat

    @state.setter
    def state(self, value: list[int]) -> None:
        self._table = np.array(value, dtype=np.int64).reshape(self._table.shape)

    def reset(self) -> None:
        self._table = np.zeros_like(self._table)

    def merge(self, state: list[int]) -> None:
        self._table = self._table + np.array(state, dtype=np.int64).reshape(self._table.shape)


@final
class ConfusionMatrix(CountTable):
    """How often each class was taken for each other: `counts` (classes, classes), targets down, predictions across.

    Outputs are scores (n, classes, ...), or classes (n, ...) as integers; targets int64 (n, ...). Equal scores count
    for the lowest class. A sample with NaN among its scores has no predicted class: it is counted in `num_bad`.

    Args:
        num_classes: At least 2.
        ignore_index: Targets with this value are left out (padding).
        names: Of the classes, for the keys of `compute`; their numbers where None.
    """

    def __init__(
        self, num_classes: int, *, ignore_index: int | None = None, names: Sequence[str] | None = None
    ) -> None:
        self._names = _names(num_classes, names)
        self._ignore_index = ignore_index
        super().__init__(num_classes, num_classes + 1)

    @property
    def num_bad(self) -> Table:
        """Of each class, how many samples had NaN among their scores: int64 (classes,)."""
        return self._table[:, -1]

    @property
    def counts(self) -> Table:
        """The samples with a prediction: int64 (classes, classes), targets down, predictions across."""
        return self._table[:, :-1]

    def update(self, output: Tensor, target: Tensor) -> None:
        self._table = self._table + confusion(output, target, len(self._names), self._ignore_index)

    def compute(self) -> Value:
        """Return every count as ``target->prediction``; ``target->nan`` too where there are such samples."""
        columns = [*self._names, "nan"] if self.num_bad.any() else self._names
        return {
            f"{true}->{guess}": float(count)
            for true, row in zip(self._names, self._table.tolist(), strict=True)
            for guess, count in zip(columns, row, strict=False)
        }


class LabelMetric(CountTable):
    """Hits, false alarms and misses of each label: the base of `Precision`, `Recall` and `F1`.

    Outputs are scores (n, classes, ...), or classes (n, ...) as integers; targets int64 (n, ...). A sample with NaN
    among its scores is a miss of its own label and a false alarm of none. With `threshold` every label is decided
    alone: outputs (n, classes) (or (n,) for one label) and targets 0 or 1 of the same shape; NaN says no.

    Args:
        num_classes: Labels there are.
        average: ``macro``: the mean over labels. ``micro``: from the sums over labels. ``weighted``: the mean over
            labels weighted by their targets. ``none``: each label under its name.
        labels: The labels that count; all where None. For instance without the background.
        threshold: Scores from here on say yes (multi-label).
        ignore_index: Targets with this value are left out.
        names: Of the labels; their numbers where None.

    Raises:
        ConfigError: A setting is out of range; in `update`: other shapes.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        average: Average = "macro",
        labels: Sequence[int] | None = None,
        threshold: float | None = None,
        ignore_index: int | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        check_average(average)
        self._names = _names(num_classes, names, least=1 if threshold is not None else 2)
        self._labels = list(range(num_classes) if labels is None else labels)
        if not self._labels or not set(self._labels) <= set(range(num_classes)):
            raise ConfigError(f"expected labels in 0..{num_classes - 1}, got {self._labels}.")
        self._average, self._threshold, self._ignore_index = average, threshold, ignore_index
        super().__init__(3, num_classes)

    def update(self, output: Tensor, target: Tensor) -> None:
        num_classes = self.counts.shape[1]
        if self._threshold is None:
            table = confusion(output, target, num_classes, self._ignore_index)
            hits = table.diagonal()
            said_other = table[:, :-1].sum(axis=0) - hits
            self._table = self._table + np.stack([hits, said_other, table.sum(axis=1) - hits])
            return
        if output.shape != target.shape or not output.ndim or math.prod(output.shape[1:]) != num_classes:
            raise ConfigError(
                f"expected outputs and targets (n, {num_classes}), got {tuple(output.shape)} and {tuple(target.shape)}."
            )
        said, true = output.reshape(-1, num_classes) >= self._threshold, target.reshape(-1, num_classes)
        is_counted = torch.ones_like(said) if self._ignore_index is None else true != self._ignore_index
        if not bool(((true == 0) | (true == 1))[is_counted].all()):
            raise ConfigError(
                "expected targets 0 or 1 with threshold=, got others. Hint: ignore_index= leaves one out."
            )
        is_one = true == 1
        rows = [said & is_one, said & ~is_one, ~said & is_one]
        self._table = self._table + np.stack([(row & is_counted).sum(dim=0).cpu().numpy() for row in rows])

    def compute(self) -> Value:
        """See `Metric.compute`; 0 where a ratio has no denominator."""
        hits, alarms, misses = (row[self._labels].tolist() for row in self.counts)
        if self._average == "micro":
            return float(self._ratio(sum(hits), sum(alarms), sum(misses)))
        ratios = [self._ratio(*counts) for counts in zip(hits, alarms, misses, strict=True)]
        names = [self._names[label] for label in self._labels]
        return averaged(names, ratios, [hit + miss for hit, miss in zip(hits, misses, strict=True)], self._average)

    def _ratio(self, hits: int, alarms: int, misses: int) -> Fraction:
        raise NotImplementedError


@final
class Precision(LabelMetric):
    """The share of a label's predictions that are right; settings as `LabelMetric`."""

    def _ratio(self, hits: int, alarms: int, misses: int) -> Fraction:
        return ratio(hits, hits + alarms)


@final
class Recall(LabelMetric):
    """The share of a label's targets that are found; settings as `LabelMetric`."""

    def _ratio(self, hits: int, alarms: int, misses: int) -> Fraction:
        return ratio(hits, hits + misses)


@final
class F1(LabelMetric):
    """The harmonic mean of precision and recall; settings as `LabelMetric`."""

    def _ratio(self, hits: int, alarms: int, misses: int) -> Fraction:
        return ratio(2 * hits, 2 * hits + alarms + misses)


def check_average(average: str) -> None:
    """Refuse (`ConfigError`) a way to average over classes that there is not."""
    if average not in get_args(Average):
        raise ConfigError(f"expected average {', '.join(map(repr, get_args(Average)))}; got {average!r}.")


def averaged(names: Sequence[str], ratios: Sequence[Fraction], weights: Sequence[int], average: str) -> Value:
    """Return ratios by name as they are, their mean, or their mean with `weights`; rounded once."""
    if average == "none":
        return {name: float(ratio) for name, ratio in zip(names, ratios, strict=True)}
    weights = weights if average == "weighted" else [1] * len(ratios)
    total = sum(ratio * weight for ratio, weight in zip(ratios, weights, strict=True))
    return float(total / sum(weights)) if sum(weights) else 0.0


def ratio(part: int, whole: int) -> Fraction:
    """Return ``part / whole`` exactly, 0 of nothing."""
    return Fraction(part, whole) if whole else Fraction(0)


def confusion(output: Tensor, target: Tensor, num_classes: int, ignore_index: int | None) -> Table:
    """Return how often each class was taken for each other in one micro-batch: int64 (num_classes, num_classes + 1).

    Targets down, predictions across; the last column counts samples with NaN among their scores.

    Args:
        output: Scores (n, num_classes, ...) or integer classes (n, ...).
        target: Classes (n, ...).
        num_classes: Rows.
        ignore_index: Targets left out.

    Raises:
        ConfigError: Other shapes, or classes out of range.
    """
    is_number = output.shape == target.shape and not output.is_floating_point()
    if is_number:
        guess = output
    elif output.ndim == target.ndim + 1 and output.shape[:1] + output.shape[2:] == target.shape:
        if output.shape[1] != num_classes:
            raise ConfigError(f"expected scores of {num_classes} classes, got {output.shape[1]}.")
        guess = output.argmax(dim=1).masked_fill(output.isnan().any(dim=1), num_classes)
    else:
        raise ConfigError(
            f"expected scores (n, {num_classes}, ...) or integer classes (n, ...) for targets (n, ...), "
            f"got {tuple(output.shape)} of {output.dtype} and {tuple(target.shape)}."
        )
    guess, target = guess.reshape(-1), target.reshape(-1)
    if ignore_index is not None:
        guess, target = guess[target != ignore_index], target[target != ignore_index]
    check_classes("targets", target, num_classes)
    if is_number:
        check_classes("predictions", guess, num_classes)
    columns = num_classes + 1
    cells = target.to(torch.int64) * columns + guess.to(torch.int64)
    counts: Any = torch.bincount(cells, minlength=num_classes * columns).cpu().numpy()
    table: Table = counts.reshape(num_classes, columns)
    return table


def _names(num_classes: int, names: Sequence[str] | None, least: int = 2) -> list[str]:
    if num_classes < least:
        raise ConfigError(f"expected num_classes >= {least}, got {num_classes}.")
    chosen = [str(number) for number in range(num_classes)] if names is None else list(names)
    if len(chosen) != num_classes or len(set(chosen)) != num_classes:
        raise ConfigError(f"expected {num_classes} different names, got {chosen}.")
    return chosen
