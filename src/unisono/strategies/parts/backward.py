"""One micro-batch forward and backward, with keyed generators: what every strategy that computes gradients does."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from unisono.determinism.backward import differentiate
from unisono.determinism.seeding import mix
from unisono.determinism.switches import set_generators
from unisono.errors import StepError
from unisono.strategies.base import LossFunction, Micro


def checked_loss(loss: Any, step: int) -> Tensor:
    """Return the loss if it is a tensor of one element with a graph.

    Raises:
        StepError: It is not.
    """
    if not isinstance(loss, Tensor):
        raise StepError(f"step {step}: expected the loss as a tensor of one element, got {type(loss).__name__}.")
    if loss.numel() != 1:
        raise StepError(
            f"step {step}: expected a scalar loss, got shape {tuple(loss.shape)}. "
            "Hint: return the mean over the micro-batch's samples (reduction='mean')."
        )
    if not loss.requires_grad:
        raise StepError(
            f"step {step}: the loss depends on no trainable parameter. "
            "Hint: compute it with the prepared model, outside torch.no_grad() and without .detach() or .item()."
        )
    return loss


def run_backward(
    loss_function: LossFunction, micro: Micro, weight: float, *, seed: int, step: int, replicas: int
) -> Tensor:
    """Add the weighted gradient of one micro-batch to every ``param.grad`` and return the (unweighted) loss.

    Args:
        loss_function: Called once.
        micro: What it gets is ``micro.data``.
        weight: Factor of the gradient.
        seed: The run's seed; with step and replica it names the state of the generators.
        step: 1-based.
        replicas: Micro-batches of the whole step; for messages.
    """
    set_generators(mix(seed, "replica", step, micro.replica))
    try:
        loss = checked_loss(loss_function(micro.data), step)
        differentiate(loss, weight)
    except Exception as error:
        explain(error, step, micro, replicas)
        raise
    return loss.detach()


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
    size = f"{micro.num_samples} sample{'s' if micro.num_samples > 1 else ''}"
    error.add_note(f"in step {step}, replica {micro.replica} of {replicas}, a micro-batch of {size}")
    if "more than 1 value per channel" in str(error):
        error.add_note(
            "Hint: batch statistics need two samples in every micro-batch. Choose fewer replicas, a larger "
            "batch_size, or one that leaves no small last batch (samples modulo batch_size)."
        )
    if "setStorage" in str(error):
        error.add_note(
            "Hint: torch's FSDP frees a module's weights after its backward, so a loss that differentiates twice "
            "(a gradient penalty) needs another strategy, exact for instance."
        )
    if type(error).__name__ == "FailOnRecompileLimitHit":
        error.add_note(
            "Hint: torch.compile makes code for each shape by itself, so that bits do not depend on which came first; "
            "there are too many. Write torch.compile(model, dynamic=True), one code for all sizes, or raise "
            "torch._dynamo.config.recompile_limit before run.prepare."
        )
    if "nference tensor" in str(error):
        error.add_note(
            "Hint: the model keeps a tensor that it computed while evaluating. "
            "Call run.evaluate(..., inference_mode=False), or make it a buffer."
        )
