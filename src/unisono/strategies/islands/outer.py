"""The outer step: how far the islands have come on average moves the weights that all of them start from.

SGD with Nesterov momentum, as torch spells it, over the mean of what each island has moved by, taken as a gradient.
Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, arXiv 2311.08105,
algorithm 1; the momentum is that of Sutskever et al., ICML 2013.
"""

import torch
from torch import Tensor


@torch.no_grad()
def outer_step(
    weights: list[Tensor], moved: list[Tensor], velocity: list[Tensor], *, lr: float, momentum: float
) -> None:
    """Move the common weights, in place.

    Args:
        weights: The common weights that the islands have started from.
        moved: Of the same shapes: the mean over the islands of common weights minus island's; overwritten.
        velocity: Of the same shapes: kept from round to round, zeros at first; changed. Empty without momentum.
        lr: Outer learning rate; 1 without momentum puts the mean of the islands' weights in place.
        momentum: In [0, 1).
    """
    if momentum and weights:
        torch._foreach_mul_(velocity, momentum)
        torch._foreach_add_(velocity, moved)
        torch._foreach_add_(moved, velocity, alpha=momentum)
    if weights:
        torch._foreach_add_(weights, moved, alpha=-lr)
