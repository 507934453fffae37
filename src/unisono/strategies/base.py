"""What every strategy is: it turns a step's micro-batches into gradients on every rank's model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

LossFunction = Callable[[Any], Tensor]
"""Takes a micro-batch, returns the mean loss over its samples: a tensor of one element with a graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Micro:
    """One replica's part of a step's batch.

    Attributes:
        replica: The replica that computes it.
        num_samples: Samples in it, at least 1.
        data: What the loss function gets; already on the model's device.
    """

    replica: int
    num_samples: int
    data: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
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


class Strategy(ABC):
    """Computes a step's gradients on every rank.

    Attributes:
        is_stop_asked: Whether this rank has been asked to stop the run; asked once a step, which tells all ranks.
    """

    def __init__(self) -> None:
        self.is_stop_asked: Callable[[], bool] = lambda: False

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
