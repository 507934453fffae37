"""One micro-batch forward and backward, with keyed generators: what every strategy that computes gradients does."""

import contextlib
import math
import operator
import re
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
from unisono.strategies.objective import Objective
from unisono.strategies.parts.weighing import read_weight

_KINDS = re.compile(r"must have the same dtype, but got (\w+) and (\w+)")
_DTYPES = {"double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32", "byte": "uint8"}


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
            "Hint: compute it with the prepared model, outside torch.no_grad() and without .detach() or .item()."
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


@contextlib.contextmanager
def explained(step: int, micro: Micro, replicas: int) -> Iterator[None]:
    """Say where the user's model failed, and what is known of some failures."""
    try:
        yield
    except Exception as error:
        explain(error, step, micro, replicas)
        raise


def explain(error: Exception, step: int, micro: Micro, replicas: int) -> None:
    """Note on an error where the user's model failed, on what, and what is known of some failures."""
    size = f"{micro.num_samples} sample{'s' if micro.num_samples > 1 else ''}"
    shown = described(micro.data)
    error.add_note(
        f"in step {step}, replica {micro.replica} of {replicas}, a micro-batch of {size}{shown and ': '}{shown}"
    )
    message = str(error)
    hints = _names(error, micro.data) if isinstance(error, AttributeError) else []
    hints += [hint for kind, words, hint in _KNOWN if isinstance(error, kind) and re.search(words, message)][:1]
    if isinstance(error, RuntimeError) and (kinds := _KINDS.search(message)):
        hints.append(_of_dtypes(*kinds.groups()))
    if type(error).__name__ == "FailOnRecompileLimitHit":
        hints.append(
            "torch.compile makes code for each shape by itself, so that bits do not depend on which came first; "
            "there are too many. Write torch.compile(model, dynamic=True), one code for all sizes, or raise "
            "torch._dynamo.config.recompile_limit before run.prepare."
        )
    for hint in hints:
        error.add_note(f"Hint: {hint}")


def _names(error: AttributeError, data: Any) -> list[str]:
    """Return what a micro-batch has, where something else was looked for."""
    if error.obj is data:
        kind, fields = type(data).__name__, getattr(data, "_fields", ())
        if fields:
            return [f"the micro-batch has {' and '.join(f'.{field}' for field in fields)}."]
        return [f"the micro-batch is a {kind}, as the data set's samples are; those of pairs have .x and .y."]
    if isinstance(error.obj, Tensor) and error.name in ("x", "y"):
        who = "A Trainer calls loss(output, target); run.step() calls the loss with a micro-batch, which has .x and .y."
        return [f"that is a tensor. {who}"]
    return []


def _of_dtypes(inputs: str, weights: str) -> str:
    ours, theirs = (_DTYPES.get(kind.lower(), kind.lower()) for kind in (inputs, weights))
    return (
        f"inputs are {ours}, the model's weights {theirs}: give the data set {theirs} (array.astype('{theirs}')), or "
        f"write model(micro.x.to(torch.{theirs})) in the loss."
    )


_KNOWN: tuple[tuple[type[Exception], str, str], ...] = (
    (TypeError, "indices must be integers", "the micro-batch of pairs has .x and .y."),
    (
        TypeError,
        "^'tuple' object is not callable",
        "run.prepare() returns two things: model, optimizer = run.prepare(model, optimizer).",
    ),
    (
        TypeError,
        r"missing \d+ required positional arg|takes \d+ positional arg|object is not callable",
        "run.step() calls the loss function with a micro-batch: lambda micro: loss(model(micro.x), micro.y).",
    ),
    (
        RuntimeError,
        "expected target dtype to be Long",
        "class numbers are int64: give the data set targets.astype('int64').",
    ),
    (
        IndexError,
        "^Target ",
        "targets are class numbers from 0; the model's last layer has an output for each of them.",
    ),
    (
        AssertionError,
        "not compiled with CUDA",
        "leave .cuda() and .to('cuda') out: the run moves model and micro-batches to run.device.",
    ),
    (
        Exception,
        "more than 1 value per channel",
        "batch statistics need two samples in every micro-batch. If it is the epoch's short last batch: "
        "run.loader(..., last='join') adds its samples to the batch before, last='drop' leaves them out. "
        "Else fewer replicas, a larger batch_size, or GroupNorm.",
    ),
    (
        Exception,
        "backward through the graph a second time",
        "run.step() does backward itself, and keeps no graph. What was computed in another micro-batch, "
        "update or step: compute it again in this loss, or .detach() it.",
    ),
    (
        Exception,
        "setStorage",
        "torch's FSDP frees a module's weights after its backward, so a loss that differentiates twice "
        "(a gradient penalty) needs another strategy, exact for instance.",
    ),
    (
        IndexError,
        "index out of range in self",
        "an index in the batch is negative, or not below the num_embeddings of an nn.Embedding. "
        "TokenFile(vocabulary=num_embeddings) names the token and its place in the file.",
    ),
    (
        Exception,
        "nference tensor",
        "the model keeps a tensor that it computed while evaluating. "
        "Call run.evaluate(..., inference_mode=False), or make it a buffer.",
    ),
)
"""What is known of failures of a loss: their type, words of their message, and what to write."""
