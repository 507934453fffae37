"""What the ranks tell each other about a step besides gradients, in one small message of fixed layout."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from unisono.collectives.transport import Transport
from unisono.strategies.base import Shares
from unisono.strategies.objective import Objective
from unisono.strategies.parts.drift import Head
from unisono.strategies.parts.weighing import Weighed, weigh


class RankReport(NamedTuple):
    """What one rank says of itself, in 64-bit numbers; flags are 0 or 1."""

    step: int  #: The step it is at, 1-based.
    weights: int  #: Checksum of its weights before the step.
    gradient: int = 0  #: Checksum of its gradients.
    is_finite: int = 1  #: Whether these are neither NaN nor infinite.
    is_reached: int = 1  #: Whether a trainable parameter has got a gradient.
    is_stop_asked: int = 0  #: 1: to stop the run; and 2 more where it knows of ranks that would join.
    busy_ns: int = 0  #: Time in which it has computed.
    span_ns: int = 0  #: Time from its first pass to its last one.
    is_training: int = 1  #: Whether its model is in training mode.

    @property
    def head(self) -> Head:
        """What must be equal on ranks that hold the same weights and compute alike."""
        return Head(self.step, self.weights, self.is_training)


_HEAD_BYTES = 8 * len(RankReport._fields)
_NOTHING = np.iinfo(np.int64).min


@final
class StepReport:
    """What is known of a step: by this rank first, by all ranks together after `merge`.

    Flags and losses are merged by `or`, bit by bit: where a rank knows nothing it has 0. Of numbers that are counted
    the largest is taken: where a rank knows nothing it has the smallest one there is.

    Attributes:
        counted: int64 (counted,): the largest values that some replica has left.
        losses: float64 (replicas,): mean loss of each replica's micro-batch; noted by one rank.
        weights: float64 (replicas,): what it counts; noted likewise.
        bad: bool (replicas,): its loss or its gradient is NaN or infinite.
        present: bool (parameters,): some replica has a gradient for it.
        changed: bool (buffers,): some replica has changed it.
    """

    def __init__(self, replicas: int, parameters: int = 0, buffers: int = 0, counted: int = 0) -> None:
        sizes = [0, _HEAD_BYTES, 8 * counted, 8 * replicas, 8 * replicas, replicas, parameters, buffers]
        ends = np.cumsum(sizes).tolist()
        self._message, self._counted = np.zeros(ends[-1], np.uint8), slice(ends[1], ends[2])
        head, numbers, losses, weights, *flags = (self._message[start:stop] for start, stop in itertools.pairwise(ends))
        self._head, self.counted, self.losses = head.view(np.uint64), numbers.view(np.int64), losses.view(np.float64)
        self.weights = weights.view(np.float64)
        self.bad, self.present, self.changed = (part.view(bool) for part in flags)
        self._counts = counted > 0
        self.clear()

    def clear(self) -> None:
        """Begin a step."""
        self._message.fill(0)
        if self._counts:
            self.counted[:] = _NOTHING

    def note(self, replica: int, loss: float, weight: float = 0.0, *, is_finite: bool = True) -> None:
        """Keep the loss and the weight of a replica computed here, and whether its gradient is finite."""
        self.losses[replica], self.weights[replica] = loss, weight
        if not (is_finite and math.isfinite(loss)):
            self.bad[replica] = True

    def note_read(self, replica: int, weight: float, loss: Tensor, *flaws: Tensor) -> None:
        """Do what `note` does, with numbers that were read from a device: the loss, and what `flaws_of` has found."""
        self.note(replica, loss.item(), weight, is_finite=not any(map(bool, flaws)))

    def bad_replicas(self) -> tuple[int, ...]:
        """Return the replicas whose loss or gradient is NaN or infinite, ascending."""
        return tuple(np.flatnonzero(self.bad).tolist()) if 1 in self.bad.tobytes() else ()

    def is_reached(self) -> bool:
        """Whether some replica has a gradient for some parameter."""
        return 1 in self.present.tobytes()  # a tenth of the time of any()

    def weigh(self, objective: Objective, shares: Shares, losses: Sequence[float] = ()) -> Weighed:
        """Return what the losses come to, which may be given as numbers; after `merge` or `take`."""
        leaves = shares.leaves
        weights = () if objective.weight is None else self.weights[:leaves].tolist()
        return weigh(objective, shares, losses or self.losses[:leaves].tolist(), weights)

    def merge(self, transport: Transport, own: RankReport) -> list[RankReport]:
        """Take over what all ranks know, and return what each says of itself, in rank order; collective."""
        if transport.world_size == 1:
            return [own]
        message = self.message(own)
        rows = message.new_empty(transport.world_size, len(message))
        transport.all_gather(message, rows.view(-1))
        return self.take(rows)

    def message(self, own: RankReport) -> Tensor:
        """Return what this rank tells the others: uint8; it stays as it is until `take`."""
        self._head[:] = np.array(own, dtype=np.uint64)
        return torch.from_numpy(self._message)

    def take(self, told: Tensor) -> list[RankReport]:
        """Do what `merge` does with the messages of all ranks, uint8 (ranks, bytes)."""
        rows = told.numpy()
        if self.counted.size:
            np.max(rows[:, self._counted].view(np.int64), axis=0, out=self.counted)
        flags = self._counted.stop
        np.bitwise_or.reduce(rows[:, flags:], axis=0, out=self._message[flags:])
        return [RankReport(*told) for told in rows[:, :_HEAD_BYTES].view(np.uint64).tolist()]
