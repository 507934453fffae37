"""One micro-batch forward and backward, with keyed generators: what every strategy that computes gradients does."""

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.collectives.places import HERE
from unisono.data.batches import described
from unisono.determinism.backward import differentiate
from unisono.determinism.seeding import mix
from unisono.determinism.switches import set_generators
from unisono.errors import StepError
from unisono.strategies.base import Micro
from unisono.strategies.hints import hints
from unisono.strategies.objective import Objective
from unisono.strategies.parts.weighing import read_weight
from unisono.system.messages import warn

_SUM = 2  # as torch counts reductions: none, mean, sum


def checked_loss(loss: Any, step: int, update: str | None = None) -> Tensor:
    """Return a loss that is a tensor of one element with a graph, to parameters of the optimizer `update` if named."""
    if not isinstance(loss, Tensor):
        inside = "return its loss alone: output.loss, output['loss'] or output[0]"
        hint = "end the loss function with `return loss`" if loss is None else "return the loss itself, without .item()"
        hint = inside if isinstance(loss, dict | tuple | list) else hint
        got = "None" if loss is None else type(loss).__name__
        raise StepError(f"step {step}: expected the loss as a tensor of one element, got {got}. Hint: {hint}.")
    if loss.numel() != 1:
        raise StepError(
            f"step {step}: expected a scalar loss, got shape {tuple(loss.shape)}. "
            "Hint: return the mean over the micro-batch's samples, or their sum with run.step(..., reduction='sum')."
        )
    if not loss.requires_grad:
        whose = f" of the optimizer {update!r}" if update else ""
        raise StepError(
            f"step {step}: the loss depends on no trainable parameter{whose}. "
            "Hint: compute it with the prepared model, outside torch.no_grad() and without .detach(), .item() "
            "or argmax."
        )
    return loss


def run_backward(
    objective: Objective, micro: Micro, num_samples: int, *, seed: int, **how: Any
) -> tuple[Tensor, float]:
    """Do what `add_gradient` does, with the generators as the run's seed, step and replica name them."""
    key_generators(seed, objective.key(how["step"], micro.replica))
    return add_gradient(objective, micro, num_samples, **how)


def key_generators(seed: int, key: Sequence[int]) -> None:
    """Put the generators into the state that the run's seed and a replica's `key` name."""
    set_generators(mix(seed, "replica", *key))


def add_gradient(
    objective: Objective,
    micro: Micro,
    num_samples: int,
    *,
    step: int,
    replicas: int,
    share: Callable[[float, int], float] = operator.truediv,
    silenced: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
) -> tuple[Tensor, float]:
    """Add a micro-batch's weighted gradient to every ``param.grad``; return the (unweighted) loss and its weight.

    A mean over nothing (weight 0) is no number: there, the loss is 0 and there is no gradient.

    Args:
        objective: Its functions are called once.
        micro: What they get is ``micro.data``.
        num_samples: Of the whole batch.
        step: 1-based.
        replicas: Micro-batches of the whole step; for messages.
        share: From what the micro-batch counts, and `num_samples`, to the factor of its gradient.
        silenced: Surrounds the backward pass of a micro-batch that counts nothing, where other ranks wait for that
            pass: makes its gradients 0. None: it has no backward pass.
    """
    try:
        loss, weight = objective.loss(micro.data), float(micro.num_samples)
        if objective.weight is not None:
            weight = read_weight(objective.weight(micro.data))
        if weight > 0 or objective.reduction == "sum":
            factor = share(objective.amount(micro.num_samples, num_samples, weight), num_samples)
            loss = checked_loss(loss, step, objective.update)
            if step == 1 and micro.replica == 0 and objective.reduction == "mean":
                _look_for_sum(loss, micro.num_samples)
            if not (factor <= 1 or factor <= torch.finfo(loss.dtype).max):
                factor = math.inf
            HERE.is_in_backward = True
            try:
                differentiate(loss, factor)
            finally:
                HERE.is_in_backward = False
            return loss.detach(), weight
        if silenced is not None:
            with silenced():
                differentiate(checked_loss(loss, step, objective.update), 0.0)
    except Exception as error:
        explain(error, step, micro, replicas)
        raise
    return torch.zeros(()), weight


def _look_for_sum(loss: Tensor, num_samples: int) -> None:
    """Warn of one of torch's losses that is the samples' sum where their mean is meant; not of what is made of it."""
    if getattr(loss.grad_fn, "_saved_reduction", None) == _SUM and num_samples > 1:
        warn(
            f"the loss is the sum over the {num_samples} samples of a micro-batch (reduction='sum'), and run.step() "
            f"takes it for their mean: its gradient is {num_samples} times as large, and depends on replicas=. "
            "Hint: leave reduction= of the loss out; or run.step(batch, loss, reduction='sum', weight=lambda micro: "
            "len(micro.y)), which divides the sum over the whole batch by its samples."
        )


@contextlib.contextmanager
def explained(step: int, micro: Micro, replicas: int) -> Iterator[None]:
    """Say where the user's model failed, and what is known of some failures."""
    try:
        yield
    except Exception as error:
        explain(error, step, micro, replicas)
        raise


def explain(error: Exception, step: int, micro: Micro, replicas: int) -> None:
    """Note on an error where the user's model failed, and what is known of some failures."""
    size, shown = f"{micro.num_samples} sample{'s' if micro.num_samples > 1 else ''}", described(micro.data)
    error.add_note(
        f"in step {step}, replica {micro.replica} of {replicas}, a micro-batch of {size}{shown and ': '}{shown}"
    )
    for hint in hints(error, micro.data):
        error.add_note(hint)
