"""What the micro-batches' losses count in a step: a loss over tokens is to be the mean over the batch's tokens.

A micro-batch's weight is known when its forward pass is over. So every gradient is scaled by ``weight / N``, with the
batch's N samples, which are known before; the weights travel with the losses, in the step's report; and the sum of the
tree is multiplied once by ``N / W``, with the sum W of all weights. Where weights are the numbers of samples, W is N,
nothing is multiplied, and the bits are those of a step without weights.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unisono.errors import StepError
from unisono.strategies.base import Shares, sum_of
from unisono.strategies.objective import Objective


class Weighed(NamedTuple):
    """What the losses of a step come to."""

    loss: float  #: Of the batch; NaN where nothing is counted.
    factor: float = 1.0  #: By which the sum of the gradients is multiplied.
    #: The sum W of the weights; of bad ones the first one; None where the program gives none.
    total: float | None = None
    bad: tuple[int, ...] = ()  #: The replicas with a bad weight; all, where the sum is 0 or infinite.


def read_weight(told: Any) -> float:
    """Return what a weight function has returned as a number; `StepError` where it is not one."""
    try:
        return float(told)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        shape = f" of shape {tuple(told.shape)}" if isinstance(told, Tensor) else ""
        raise StepError(
            f"expected the weight of a micro-batch as one number, got {type(told).__name__}{shape}. "
            "Hint: weight=lambda micro: micro.mask.sum()."
        ) from error


def weigh(objective: Objective, shares: Shares, losses: Sequence[float], weights: Sequence[float]) -> Weighed:
    """Return what a step's losses come to; the same on all ranks, which know the same numbers."""
    if objective.weight is None:
        if len(losses) == 1:
            return Weighed(losses[0] + 0.0)  # as a sum: never -0.0
        return Weighed(shares.mean(losses) if objective.reduction == "mean" else sum_of(losses))
    bad = tuple(replica for replica, weight in enumerate(weights) if not 0.0 <= weight < math.inf)
    total = weights[bad[0]] if bad else sum_of(weights)
    if not 0.0 < total < math.inf:
        return Weighed(math.nan, 1.0, total, bad or tuple(range(shares.leaves)))
    factor = shares.num_samples / total
    if objective.reduction == "sum":
        return Weighed(sum_of(losses) / total, factor, total)
    parts = [weight / shares.num_samples * loss for weight, loss in zip(weights, losses, strict=True) if weight]
    return Weighed(sum_of(parts) * factor, factor, total)


def scale(tensors: Iterable[Tensor], factor: float) -> None:
    """Multiply tensors in their place; by 1 not at all."""
    found = list(tensors)
    if factor != 1.0 and found:
        torch._foreach_mul_(found, factor)
