"""The loss of an evaluation: what training minimises, over a data set."""

import math
from collections.abc import Callable
from typing import Any, final

from torch import Tensor

from unisono.metrics.base import ExactSum, Mean, units_of
from unisono.strategies.objective import WeightFunction
from unisono.strategies.parts.weighing import read_weight

LossModule = Callable[[Tensor, Tensor], Tensor]
"""From (output, target) to the mean loss over the samples: ``nn.CrossEntropyLoss()``, ``F.mse_loss``, ..."""


@final
class EvaluatedLoss(Mean):
    """The mean of a loss over samples, or over what weights count; of sums their sum, over that of the weights.

    NaN where a loss is not finite, or a weight no finite number of at least 0, or all weights are 0.
    """

    def __init__(self, loss: LossModule, weight: WeightFunction | None = None, reduction: str = "mean") -> None:
        super().__init__()
        self._loss, self._weight_of, self._is_sum = loss, weight, reduction == "sum"
        self._weight = 1.0

    def begin(self, micro: Any) -> None:
        """Look at the micro-batch of the next `update`."""
        if self._weight_of is not None:
            self._weight = read_weight(self._weight_of(micro))

    def update(self, output: Tensor, target: Tensor) -> None:
        loss, weight = self._loss(output, target), self._weight
        if self._weight_of is None and not self._is_sum:
            super().update(loss, target)
            return
        factor = 1.0 if self._is_sum else weight
        value = loss.double().item() * factor if factor else 0.0
        is_good = math.isfinite(value) and 0.0 <= weight < math.inf
        self.merge([units_of(value), units_of(weight), 0] if is_good else [0, 0, 1])

    def compute(self) -> float:
        units, weights, num_bad = self.state
        if self._weight_of is not None:
            return math.nan if num_bad or not weights else units / weights
        if self._is_sum:
            return math.nan if num_bad else float(ExactSum(units))
        return super().compute()
