"""What every strategy is: it turns a step's micro-batches into one update on every rank's model."""

import contextlib
import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.checkpoint import format as checkpoint_format
from unisono.checkpoint.format import State
from unisono.collectives.placement import cut
from unisono.collectives.transport import Transport
from unisono.determinism import optimizer_step
from unisono.determinism.devices import is_gpu
from unisono.errors import ConfigError, StepError
from unisono.strategies.objective import Objective
from unisono.strategies.parts.clipping import Clipping
from unisono.strategies.parts.streams import key_rnns
from unisono.strategies.precision import MixedPrecision


class Micro(NamedTuple):
    """One replica's part of a step's batch."""

    replica: int  #: The replica that computes it.
    num_samples: int  #: Samples in it, at least 1.
    data: Any  #: What the loss function gets; already on the model's device.


class Gradients(NamedTuple):
    """What a strategy reports about the gradients it has left in ``param.grad``."""

    #: Mean loss over the samples of the whole batch, or what the objective asks for; the same on all ranks.
    loss: float
    checksum: int  #: Sum of the gradient's bits as 64-bit integers, modulo 2**64: one wrong bit changes it.
    #: The same sum over weights and persistent floating-point buffers that the gradient was computed with.
    weights: int
    #: Replicas whose loss or gradient is NaN or infinite, ascending; the same on all ranks.
    bad_replicas: tuple[int, ...]
    #: Mean loss of each replica that had samples; empty where the strategy has no replicas.
    losses: tuple[float, ...] = ()
    is_stop_asked: bool = False  #: Whether any rank has been asked to stop the run; the same on all ranks.
    #: Sum of the micro-batches' weights, see `Objective`; None where it has no weights. Where it is not above 0 and
    #: finite, `bad_replicas` are those that are to blame.
    samples_weight: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyContext:
    """Where a strategy works."""

    transport: Transport  #: Joins the ranks.
    placement: Sequence[range]  #: The replicas that each rank computes, in rank order.
    seed: int  #: The run's seed.
    device: torch.device  #: Of this rank.
    #: How gradients are limited before an update.
    clipping: Clipping = Clipping()  # noqa: RUF009 - frozen
    #: What the program's functions compute in; gradients are scaled by its `scale` until an update.
    precision: MixedPrecision = field(default_factory=MixedPrecision)

    @property
    def replicas(self) -> int:
        """Micro-batches of a whole step."""
        return max(hosted.stop for hosted in self.placement)


def check_trainable(model: nn.Module) -> None:
    """Refuse a model that nothing can be learned by."""
    parameters = list(model.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError(
            f"expected a model with trainable parameters, got {type(model).__name__} with "
            f"{len(parameters)} parameters, none with requires_grad."
        )


def check_reached(step: int, *, is_reached: bool) -> None:
    """Refuse a step in which nothing would be trained; called by all ranks, with what they have agreed on."""
    if not is_reached:
        raise StepError(
            f"step {step}: no trainable parameter of the prepared model got a gradient: nothing would be trained. "
            "Hint: compute the loss with the model that run.prepare() has returned, not with a copy or another "
            "instance, and detach nothing between its outputs and the loss."
        )


def sum_of(values: Iterable[float]) -> float:
    """Return the sum, rounded once; NaN where infinities cancel, infinity where it is too large."""
    values = list(values)
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


@final
class Shares:
    """How a batch is shared out among replicas."""

    def __init__(self, num_samples: int, replicas: int) -> None:
        self.num_samples = num_samples
        #: Samples of each replica; those without any come last.
        self.sizes = [len(part) for part in cut(num_samples, replicas)]
        self.weights = [size / num_samples for size in self.sizes]  #: The share of each replica in the batch.
        self.leaves = min(num_samples, replicas)  #: Replicas with a sample.

    def mean(self, losses: Iterable[float]) -> float:
        """Return the mean loss over the batch from the mean losses of the micro-batches, in replica order."""
        return sum_of(map(operator.mul, self.weights[: self.leaves], losses))


_shares = functools.lru_cache(maxsize=64)(Shares)


def scale_gradients(grads: Sequence[Tensor], norm: Tensor, clip_norm: float) -> None:
    """Scale gradients of the global norm `norm` so that it is at most `clip_norm`, spelled as torch does it."""
    torch._foreach_mul_(list(grads), torch.clamp(clip_norm / (norm + 1e-6), max=1.0))


def limit_norm(parameters: Iterable[Tensor], limit: float) -> None:
    """Scale gradients so that their norm over all `parameters` is at most `limit`."""
    parameters = list(parameters)
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if all(grad.is_cpu for grad in grads):
        torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=True)
        return
    norm = torch.linalg.vector_norm(torch.stack([each.to(grads[0].device) for each in norms_of(grads)]))
    for device in dict.fromkeys(grad.device for grad in grads):
        scale_gradients([grad for grad in grads if grad.device == device], norm.to(device), limit)


def norms_of(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the norm of each tensor, of which none depends on the others.

    On GPUs torch adds in another order where it takes the norms of many tensors at a time; on the CPU it does not.
    """
    if all(tensor.is_cpu for tensor in tensors):
        return torch._foreach_norm(list(tensors)) if tensors else ()
    return [torch.linalg.vector_norm(tensor) for tensor in tensors]


def limit_values(gradients: list[Tensor], limit: float) -> None:
    """Set every element of gradients that is larger than `limit` in magnitude to it, sign kept."""
    if gradients:  # a server, a stage or a rank without a sample may have none
        torch._foreach_clamp_min_(gradients, -limit)
        torch._foreach_clamp_max_(gradients, limit)


class Strategy(ABC):
    """Computes a step's gradients on every rank, and owns whatever differs between strategies.

    It does all wrapping and sharding when it is built. All methods are collective.

    Attributes:
        front: What the program calls in place of its model.
        transport: Joins the ranks.
        placement: The replicas that each rank computes, in rank order.
        replicas: Micro-batches of a whole step.
        is_sharded: Whether a rank holds a part of the weights only, so that hashing them needs all ranks.
        evaluates_alike: Whether a forward pass in evaluation needs all ranks, so that they must do equally many.
        keeps_equal: Whether the ranks must hold the same weights after every step.
        saves_alone: Whether every rank holds the whole state after every step, so that one can save it by itself.
        closure: What the next `apply` gives to an optimizer that computes the loss itself; None: it does not.
        is_stop_asked: What this rank asks of all, see `RankReport`: to stop the run; asked once a step.
        is_join_asked: Whether a rank has said in the last step that others would join.
        first_loss: Lets ranks compare a loss in the first step, see `FirstLoss`; None: they do not.
        busy_ns: Time in which each rank has computed the last step's replicas, in rank order; empty where not known.
        begin_step: Told the checksum of `recorded` as soon as a step knows it, before anything is computed.

    Raises:
        ConfigError: Model, optimizer and options do not fit, or the model has no trainable parameter.
    """

    is_sharded = evaluates_alike = is_join_asked = False
    keeps_equal: bool = False
    saves_alone: bool = False
    closure: Any = None
    first_loss: Any = None
    busy_ns: Sequence[int] = ()
    is_stop_asked: Callable[[], int] = staticmethod(lambda: False)
    begin_step: Callable[[int], None] = staticmethod(lambda _: None)

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: Any) -> None:
        check_trainable(model)
        self.model, self.optimizer, self.context, self.options = model, optimizer, context, options
        self.transport, self.placement, self.replicas = context.transport, context.placement, context.replicas
        self.front = model
        if is_gpu(context.device):
            key_rnns(model)

    @abstractmethod
    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, objective: Objective
    ) -> Gradients:
        """Leave the gradient of the mean loss over the whole batch in every ``param.grad``.

        Collective: every rank calls it for every step, and it blocks.

        Args:
            step: The step to come, 1-based.
            micros: This rank's micro-batches, in replica order; consumed one at a time.
            num_samples: Samples of the whole batch, over all ranks.
            objective: What is minimised.

        Raises:
            StepError: The loss is not a scalar with a graph.
            PeerLost: Another rank went away.
            RankDivergence: The ranks are not at the same step, or not with the same weights.
        """

    def begin_again(self, *, is_within: bool) -> None:  # noqa: B027 - most strategies cannot
        """Forget what is laid out for a world of other ranks, and the step in progress, which is begun again.

        Args:
            is_within: Whether that step had been begun; else nothing of the model is touched.
        """

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
        if self.closure is None:
            optimizer_step.step(self.optimizer)
        else:
            self.optimizer.step(self.closure)
        return True

    def clip_gradients(self) -> None:
        """Unscale and limit the gradients of this rank, as all ranks do theirs."""
        context = self.context
        clipping, precision = context.clipping, context.precision
        if precision.scale != 1:
            precision.unscale(self.own_gradients())
        if clipping.norm is not None:
            self.clip_norm(clipping.norm)
        elif clipping.value is not None:
            self.clip_values(clipping.value)

    def own_gradients(self) -> list[Tensor]:
        """Return the gradients that this rank holds, as they lie in its memory."""
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def clip_norm(self, limit: float) -> None:
        """Scale the gradients so that their norm over the whole model is at most `limit`."""
        limit_norm(self.model.parameters(), limit)

    def clip_values(self, limit: float) -> None:
        """Set every element of the gradients that is larger than `limit` in magnitude to it, sign kept."""
        limit_values(self.own_gradients(), limit)

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
        values = {"strategy": self.extra_state() | self.context.precision.state()}
        return checkpoint_format.pack(self.model, self.optimizer, scheduler, values, objects)

    def unpack(self, state: State, scheduler: Any, objects: Mapping[str, checkpoint_format.Stateful]) -> None:
        """Put a state back that `pack` has returned, here or on another number of ranks."""
        values = checkpoint_format.unpack(state, self.model, self.optimizer, scheduler, objects)
        self.load_extra_state(kept := values.get("strategy", {}))
        self.context.precision.load(kept)

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
