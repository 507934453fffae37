"""What every strategy is: it turns a step's micro-batches into one update on every rank's model."""

import contextlib
import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.checkpoint import format as checkpoint_format
from unisono.checkpoint.format import State
from unisono.collectives.placement import cut
from unisono.collectives.transport import Transport
from unisono.determinism import optimizer_step
from unisono.errors import ConfigError, StepError
from unisono.strategies.parts.clipping import Clipping

LossFunction = Callable[[Any], Tensor]
"""Takes a micro-batch, returns the mean loss over its samples: a tensor of one element with a graph."""


class Micro(NamedTuple):
    """One replica's part of a step's batch.

    Attributes:
        replica: The replica that computes it.
        num_samples: Samples in it, at least 1.
        data: What the loss function gets; already on the model's device.
    """

    replica: int
    num_samples: int
    data: Any


class Gradients(NamedTuple):
    """What a strategy reports about the gradients it has left in ``param.grad``.

    Attributes:
        loss: Mean loss over the samples of the whole batch; the same on all ranks.
        losses: Mean loss of each replica that had samples; empty where the strategy has no replicas.
        checksum: Sum of the gradient's bits as 64-bit integers, modulo 2**64: one wrong bit changes it.
        weights: The same sum over weights and persistent floating-point buffers that the gradient was computed with.
        bad_replicas: Replicas whose loss or gradient is NaN or infinite, ascending; the same on all ranks.
        is_stop_asked: Whether any rank has been asked to stop the run; the same on all ranks.
    """

    loss: float
    checksum: int
    weights: int
    bad_replicas: tuple[int, ...]
    losses: tuple[float, ...] = ()
    is_stop_asked: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyContext:
    """Where a strategy works.

    Attributes:
        transport: Joins the ranks.
        placement: The replicas that each rank computes, in rank order.
        seed: The run's seed.
        device: Of this rank.
        clipping: How gradients are limited before an update.
    """

    transport: Transport
    placement: Sequence[range]
    seed: int
    device: torch.device
    clipping: Clipping = Clipping()  # noqa: RUF009 - frozen

    @property
    def replicas(self) -> int:
        """Micro-batches of a whole step."""
        return max(hosted.stop for hosted in self.placement)


def check_trainable(model: nn.Module) -> None:
    """Refuse a model that nothing can be learned by.

    Raises:
        ConfigError: It has no trainable parameter.
    """
    parameters = list(model.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError(
            f"expected a model with trainable parameters, got {type(model).__name__} with "
            f"{len(parameters)} parameters, none with requires_grad."
        )


def check_reached(step: int, *, is_reached: bool) -> None:
    """Refuse a step in which nothing would be trained; called by all ranks, with what they have agreed on.

    Args:
        step: 1-based.
        is_reached: Whether a trainable parameter has a gradient on some rank.

    Raises:
        StepError: None has.
    """
    if not is_reached:
        raise StepError(
            f"step {step}: no trainable parameter of the prepared model got a gradient: nothing would be trained. "
            "Hint: compute the loss with the model that run.prepare() has returned, not with a copy or another "
            "instance, and detach nothing between its outputs and the loss."
        )


@final
class Shares:
    """How a batch is shared out among replicas.

    Args:
        num_samples: Of the whole batch.
        replicas: Of a whole step.

    Attributes:
        sizes: Samples of each replica; those without any come last.
        weights: The share of each replica in the batch.
        leaves: Replicas with a sample.
    """

    def __init__(self, num_samples: int, replicas: int) -> None:
        self.sizes = [len(part) for part in cut(num_samples, replicas)]
        self.weights = [size / num_samples for size in self.sizes]
        self.leaves = min(num_samples, replicas)

    def mean(self, losses: Iterable[float]) -> float:
        """Return the mean loss over the batch from the mean losses of the micro-batches, in replica order."""
        return math.fsum(map(operator.mul, self.weights[: self.leaves], losses))


_shares = functools.lru_cache(maxsize=64)(Shares)


def scale_gradients(grads: Sequence[Tensor], norm: Tensor, clip_norm: float) -> None:
    """Scale gradients of the global norm `norm` so that it is at most `clip_norm`, spelled as torch does it."""
    torch._foreach_mul_(list(grads), torch.clamp(clip_norm / (norm + 1e-6), max=1.0))


class Strategy(ABC):
    """Computes a step's gradients on every rank, and owns whatever differs between strategies.

    It does all wrapping and sharding when it is built. All methods are collective.

    Args:
        model: As the program has built it, on its device.
        optimizer: Of its parameters.
        context: Where the strategy works.
        options: Its options, see `unisono.strategies.options`.

    Attributes:
        front: What the program calls in place of its model.
        transport: Joins the ranks.
        placement: The replicas that each rank computes, in rank order.
        replicas: Micro-batches of a whole step.
        is_sharded: Whether a rank holds a part of the weights only, so that hashing them needs all ranks.
        evaluates_alike: Whether a forward pass in evaluation needs all ranks, so that they must do equally many.
        keeps_equal: Whether the ranks must hold the same weights after every step.
        saves_alone: Whether every rank holds the whole state after every step, so that one can save it by itself.
        is_stop_asked: Whether this rank has been asked to stop the run; asked once a step, which tells all ranks.
        begin_step: Told the checksum of `recorded` as soon as a step knows it, before anything is computed.

    Raises:
        ConfigError: Model, optimizer and options do not fit, or the model has no trainable parameter.
    """

    is_sharded: bool = False
    evaluates_alike: bool = False
    keeps_equal: bool = False
    saves_alone: bool = False
    is_stop_asked: Callable[[], bool] = staticmethod(lambda: False)
    begin_step: Callable[[int], None] = staticmethod(lambda _: None)

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: Any) -> None:
        check_trainable(model)
        self.model, self.optimizer, self.context, self.options = model, optimizer, context, options
        self.transport, self.placement, self.replicas = context.transport, context.placement, context.replicas
        self.front = model

    @abstractmethod
    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, loss_function: LossFunction
    ) -> Gradients:
        """Leave the gradient of the mean loss over the whole batch in every ``param.grad``.

        Collective: every rank calls it for every step, and it blocks.

        Args:
            step: The step to come, 1-based.
            micros: This rank's micro-batches, in replica order; consumed one at a time.
            num_samples: Samples of the whole batch, over all ranks.
            loss_function: Called once per micro-batch.

        Raises:
            StepError: The loss is not a scalar with a graph.
            PeerLost: Another rank went away.
            RankDivergence: The ranks are not at the same step, or not with the same weights.
        """

    def begin_again(self) -> None:  # noqa: B027 - most strategies cannot
        """Forget the step in progress, which `transport` and `placement` of another world will begin again."""

    def shares(self, num_samples: int) -> Shares:
        """Return how a batch of so many samples is shared out among the replicas."""
        return _shares(num_samples, self.replicas)

    def update(self, scheduler: Any) -> float:
        """Clip, step the optimizer, step the scheduler; returns the learning rate that was used (first group)."""
        lr = float(self.optimizer.param_groups[0]["lr"])
        if self.apply() and scheduler is not None:
            scheduler.step()
        return lr

    def apply(self) -> bool:
        """Clip and step the optimizer; return whether that has been done, so that the scheduler steps too."""
        self.clip_gradients()
        optimizer_step.step(self.optimizer)
        return True

    def clip_gradients(self) -> None:
        """Limit the gradients of this rank, as all ranks do theirs."""
        clipping = self.context.clipping
        if clipping.norm is not None:
            self.clip_norm(clipping.norm)
        elif clipping.value is not None:
            self.clip_values(clipping.value)

    def clip_norm(self, limit: float) -> None:
        """Scale the gradients so that their norm over the whole model is at most `limit`."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit, foreach=True)

    def clip_values(self, limit: float) -> None:
        """Set every element of the gradients that is larger than `limit` in magnitude to it, sign kept."""
        with_gradient = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        if with_gradient:  # a server, a stage or a rank without a sample may have none
            torch.nn.utils.clip_grad_value_(with_gradient, limit, foreach=True)

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return what surrounds evaluation: inside, every rank's model has the run's weights and buffers."""
        return contextlib.nullcontext()

    def settle(self) -> None:  # noqa: B027 - most strategies keep all ranks equal anyway
        """Bring all ranks to one state before it is saved or hashed."""

    def left_over(self) -> str:
        """Return what to say where the run ends now, if its model lacks something that was learned; else nothing."""
        return ""

    def recorded(self) -> Sequence[Tensor]:
        """Return the live tensors whose checksum `begin_step` is told; none where a rank has not all of them."""
        return ()

    def pack(self, scheduler: Any, objects: Mapping[str, checkpoint_format.Stateful]) -> State:
        """Return the whole run's state, independent of the number of ranks; after `settle`."""
        values = {"strategy": self.extra_state()}
        return checkpoint_format.pack(self.model, self.optimizer, scheduler, values, objects)

    def unpack(self, state: State, scheduler: Any, objects: Mapping[str, checkpoint_format.Stateful]) -> None:
        """Put a state back that `pack` has returned, here or on another number of ranks."""
        values = checkpoint_format.unpack(state, self.model, self.optimizer, scheduler, objects)
        self.load_extra_state(values.get("strategy", {}))

    def extra_state(self) -> dict[str, Any]:
        """Return what the strategy itself keeps from step to step; JSON-able, equal on all ranks."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - most keep nothing
        """Take over what `extra_state` has returned."""

    def fingerprint(self) -> str:
        """Return the SHA-256 over all parameters and buffers in name order; after `settle`."""
        return checkpoint_format.fingerprint(self.model)

    def report(self) -> dict[str, Any]:
        """Return what else ``result.json`` should hold (staleness, bytes); JSON-able."""
        return {}

    def close(self) -> None:  # noqa: B027 - most strategies own nothing
        """Release what the strategy opened; safe to call twice."""
