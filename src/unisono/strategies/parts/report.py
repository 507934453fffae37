"""What ranks tell each other about a step besides gradients, for strategies whose ranks hold equal weights."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from unisono.collectives.transport import Transport


def tell_all(
    transport: Transport, head: Sequence[int], fields: Sequence[npt.NDArray[Any]]
) -> list[tuple[tuple[int, ...], list[npt.NDArray[Any]]]]:
    """Return every rank's head and fields, in rank order; collective.

    Args:
        transport: Joins the ranks.
        head: 64-bit numbers of this rank.
        fields: Of this rank, of one dimension; of the same dtypes and lengths on all ranks.
    """
    parts = [np.array(head, dtype=np.uint64), *fields]
    sent = torch.from_numpy(np.concatenate([part.view(np.uint8) for part in parts]))
    everyone = torch.empty(transport.world_size * len(sent), dtype=torch.uint8)
    transport.all_gather(sent, everyone)
    cuts = np.cumsum([part.nbytes for part in parts[:-1]])
    told = []
    for row in everyone.view(transport.world_size, -1).numpy():
        numbers, *others = [
            np.frombuffer(raw.tobytes(), dtype=part.dtype)  # a copy: aligned
            for raw, part in zip(np.split(row, cuts), parts, strict=True)
        ]
        told.append((tuple(numbers.tolist()), others))
    return told


@final
class StepReport:
    """One small message of fixed layout per step.

    Attributes:
        losses: float64 (replicas,): mean loss of each micro-batch.
        finite: bool (replicas,): its loss is finite.
    """

    def __init__(self, num_replicas: int) -> None:
        self.losses = np.zeros(num_replicas)
        self.finite = np.ones(num_replicas, dtype=bool)

    def note(self, replica: int, loss: float) -> None:
        """Keep the loss of a micro-batch computed here."""
        self.losses[replica] = loss
        self.finite[replica] = np.isfinite(loss)

    def merge(
        self, transport: Transport, placement: Sequence[range], speakers: Sequence[int], head: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Take over what the ranks know of the replicas they compute; collective.

        Args:
            transport: Joins the ranks.
            placement: The replicas of each rank.
            speakers: The ranks that know the losses of their replicas.
            head: 64-bit numbers of this rank.

        Returns:
            Every rank's head, in rank order.
        """
        if transport.world_size == 1:
            return [tuple(head)]
        told = tell_all(transport, head, [self.losses, self.finite])
        for rank in speakers:
            own = slice(placement[rank].start, placement[rank].stop)
            _, (losses, finite) = told[rank]
            self.losses[own], self.finite[own] = losses[own], finite[own]
        return [numbers for numbers, _ in told]
