"""The area under the ROC curve, exactly: from how often each score occurred, not from a curve with thresholds."""

from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.errors import ConfigError
from unisono.metrics.base import Metric, Value, check_classes

_Rows = npt.NDArray[np.int64]


@final
class AUROC(Metric):
    """The probability that a random positive sample has a larger score than a random negative one; ties count half.

    What is kept and merged is a table of distinct scores with their positive and negative samples: whole numbers, so
    the result is the exact quotient (rounded once), whatever the shards. It grows with the distinct scores: about 40
    bytes each in memory and in the message to the other ranks.

    One class (the default): outputs are scores (n,), or (n, 2), of which the difference counts; targets 0 or 1, (n,).
    More classes: outputs are scores (n, num_classes); each class stands against all others by its own score, so give
    probabilities; `compute` returns the mean over the classes that have positive and negative samples.

    NaN where a score was NaN, or where there is no pair to compare.

    Args:
        num_classes: None for one class against its absence.
    """

    def __init__(self, num_classes: int | None = None) -> None:
        if num_classes is not None and num_classes < 2:
            raise ConfigError(f"expected num_classes >= 2 (or None), got {num_classes}.")
        self._num_classes = num_classes
        self._num_bad = 0
        self._rows: list[_Rows] = []

    @property
    def state(self) -> list[int]:
        """Samples with NaN, then for each (class, score): class, bits of the score, negatives, positives."""
        self._rows = [_compressed(self._rows)]
        flat: list[int] = self._rows[0].reshape(-1).tolist()
        return [self._num_bad, *flat]

    @state.setter
    def state(self, value: list[int]) -> None:
        self.reset()
        self.merge(value)

    def reset(self) -> None:
        self._num_bad = 0
        self._rows = []

    def merge(self, state: list[int]) -> None:
        self._num_bad += state[0]
        self._add(np.array(state[1:], dtype=np.int64).reshape(-1, 4))

    def update(self, output: Tensor, target: Tensor) -> None:
        count = len(target)
        allowed = [(count,), (count, 2)] if self._num_classes is None else [(count, self._num_classes)]
        if target.ndim != 1 or tuple(output.shape) not in allowed:
            raise ConfigError(
                f"AUROC expects outputs {' or '.join(map(str, allowed))} for targets (n,), "
                f"got {tuple(output.shape)} and {tuple(target.shape)}."
            )
        check_classes("targets", target, self._num_classes or 2)
        scores, labels = output.double(), target.to(torch.int64)
        if self._num_classes is None:
            scores = (scores if scores.ndim == 1 else scores[:, 1] - scores[:, 0])[:, None]
            is_positive = (labels == 1)[:, None]
        else:
            is_positive = labels[:, None] == torch.arange(self._num_classes, device=labels.device)
        is_good = ~scores.isnan().any(dim=1)
        self._num_bad += int((~is_good).sum())
        scores, is_positive = scores[is_good], is_positive[is_good]
        bits = (scores + 0.0).cpu().numpy().view(np.int64)  # -0.0 + 0.0 is 0.0: equal scores have equal bits
        positive = is_positive.cpu().numpy().astype(np.int64)
        classes = np.broadcast_to(np.arange(bits.shape[1]), bits.shape)
        self._add(np.stack([classes, bits, 1 - positive, positive], axis=-1).reshape(-1, 4))

    def compute(self) -> Value:
        if self._num_bad:
            return float("nan")
        rows = _compressed(self._rows)
        areas = [_area(rows[rows[:, 0] == label]) for label in np.unique(rows[:, 0])]
        known = [area for area in areas if area is not None]
        if not known:
            return float("nan")
        # The mean of the classes' exact quotients, by whole numbers: rounded once.
        whole = 1
        for _, pairs in known:
            whole *= pairs
        return sum(won * (whole // pairs) for won, pairs in known) / (whole * len(known))

    def _add(self, rows: _Rows) -> None:
        self._rows.append(rows)
        if len(self._rows) > 1 and sum(map(len, self._rows[1:])) > max(4096, len(self._rows[0])):
            self._rows = [_compressed(self._rows)]


def _compressed(parts: list[_Rows]) -> _Rows:
    """Return one row for each (class, score bits), sorted, with the samples of all rows added."""
    if not parts:
        return np.empty((0, 4), dtype=np.int64)
    rows = np.concatenate(parts)
    if not len(rows):
        return rows
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    begins = np.flatnonzero(np.r_[True, (rows[1:, :2] != rows[:-1, :2]).any(axis=1)])
    return np.hstack([rows[begins, :2], np.add.reduceat(rows[:, 2:], begins, axis=0)])


def _area(rows: _Rows) -> tuple[int, int] | None:
    """Return (won, pairs): twice the pairs that the positive sample wins, twice all pairs; None where there is none.

    Args:
        rows: (scores, 4) of one class: class, bits, negatives, positives.

    Source: Mann and Whitney, Ann. Math. Statist. 18 (1947): the U statistic.
    """
    rows = rows[np.argsort(rows[:, 1].copy().view(np.float64), kind="stable")]
    below, won = 0, 0
    for negatives, positives in rows[:, 2:].tolist():
        won += positives * (2 * below + negatives)
        below += negatives
    pairs = 2 * below * int(rows[:, 3].sum())
    return (won, pairs) if pairs else None
