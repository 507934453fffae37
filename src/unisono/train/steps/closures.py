"""Optimizers that ask for the loss several times in a step (LBFGS): every time, the same step is computed again.

The same samples, with the same random numbers, at the weights as the optimizer has left them. All ranks hold the same
bits, so all ask equally often.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor
from torch.optim import Optimizer

from unisono.determinism.switches import checksum
from unisono.errors import NonFiniteError
from unisono.strategies.base import Gradients


def takes_closure(optimizer: Optimizer) -> bool:
    """Whether an optimizer cannot step without a function that computes the loss."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


@final
class Closure:
    """What the optimizer calls in one step.

    Args:
        weights: The live parameters.
        first: What is known of the step; it holds as long as the weights are those that it began with.
        compute: Computes the step again and leaves its gradients in the parameters; `NonFiniteError` puts the weights
            back that the step began with.

    Attributes:
        count: How often it has been called.
    """

    def __init__(self, weights: Sequence[Tensor], first: Gradients, compute: Callable[[], Gradients]) -> None:
        self._weights, self._first, self._compute = weights, first, compute
        self._began_with = [tensor.detach().clone() for tensor in weights]
        self._known: int | None = checksum(weights)
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        if self._known is not None and checksum(self._weights) == self._known:
            self._known = None
            return self._first.loss
        self._known = None
        try:
            return self._compute().loss
        except NonFiniteError:
            with torch.no_grad():
                torch._foreach_copy_(list(self._weights), self._began_with)
            raise
