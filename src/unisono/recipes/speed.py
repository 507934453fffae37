"""What makes a step faster at the price of other bits, on request: bf16 autocast, `torch.compile`, channels-last."""

from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from unisono.recipes.catalog import Options

M = TypeVar("M", bound=nn.Module)


def tune(model: M, options: Options) -> M:
    """Return `model`, changed in place as the options say; its parameters keep names and shapes.

    Args:
        model: From a micro-batch's inputs to a float tensor.
        options: `bf16` and `compile` change bits and belong to the score.
    """
    if options.bf16:
        plain = model.forward

        @wraps(plain)
        def in_bf16(*inputs: Any) -> Tensor:
            with torch.autocast(inputs_device(inputs).type, torch.bfloat16):
                scores: Tensor = plain(*inputs)
            return scores.float()

        model.forward = in_bf16
    if options.compile:
        model.compile(dynamic=True)
    return model


def inputs_device(inputs: tuple[Any, ...]) -> torch.device:
    """Return where the first tensor among (nested) inputs lives."""
    first = inputs[0]
    while not isinstance(first, Tensor):
        first = first[0]
    return first.device


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
