"""What makes a step faster at the price of other bits, on request: `torch.compile`, channels-last."""

from typing import TypeVar

import torch
from torch import nn

from unisono.recipes.catalog import Options

M = TypeVar("M", bound=nn.Module)


def tune(model: M, options: Options) -> M:
    """Return `model`, changed in place as the options say; its parameters keep names and shapes.

    Args:
        model: From a micro-batch's inputs to a float tensor. Of a class of its own: what is one of torch's, as
            `nn.Sequential`, ``compile`` leaves as it is, without a word.
        options: `compile` changes bits and belongs to the score.
    """
    if options.compile:
        model.compile(dynamic=True)
    return model


def channels_last(model: M) -> M:
    """Lay out the weights of two-dimensional convolutions so that the channels of a pixel lie together; other bits."""
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model


def one_cycle(
    optimizer: torch.optim.Optimizer, *, steps: int, warm_up: float = 0.3
) -> torch.optim.lr_scheduler.OneCycleLR:
    """Return a schedule: a share `warm_up` of all `steps` raises each group's rate to its own, the rest lowers it.

    Source: L. Smith, N. Topin, "Super-Convergence", 2018 (torch's implementation).
    """
    highest = [group["lr"] for group in optimizer.param_groups]
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, highest, total_steps=max(steps, 2), pct_start=warm_up)
