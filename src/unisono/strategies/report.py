"""What ranks tell each other about a step besides gradients, for strategies whose ranks hold equal weights."""

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from unisono.collectives.transport import Transport


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
        mine = np.array(head, dtype=np.uint64)
        if transport.world_size == 1:
            return [tuple(int(number) for number in mine)]
        fields = [mine, self.losses, self.finite]
        sent = torch.from_numpy(np.concatenate([field.view(np.uint8) for field in fields]))
        everyone = torch.empty(transport.world_size * len(sent), dtype=torch.uint8)
        transport.all_gather(sent, everyone)
        rows = everyone.view(transport.world_size, -1).numpy()
        heads = []
        for rank, row in enumerate(rows):
            told, losses, finite = np.split(row, np.cumsum([field.nbytes for field in fields[:-1]]))
            heads.append(tuple(np.frombuffer(told.tobytes(), dtype=np.uint64).tolist()))
            if rank in speakers:
                own = slice(placement[rank].start, placement[rank].stop)
                self.losses[own] = np.frombuffer(losses.tobytes())[own]
                self.finite[own] = finite[own].astype(bool)
        return heads
