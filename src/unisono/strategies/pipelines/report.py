"""What the ranks of a pipeline tell each other about a step, in one small message of fixed layout."""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from unisono.collectives.transport import Transport
from unisono.strategies.parts.report import tell_all
from unisono.strategies.pipelines.parts import Mesh, Part
from unisono.strategies.pipelines.stage import Stage


@final
class PipelineReport:
    """What this rank's stages have found, and after `merge` what all have.

    Args:
        parts: All stages.
        num_replicas: Of a whole step.

    Attributes:
        losses: float64 (replicas,): mean loss of each replica's micro-batch.
        finite: bool (replicas,): loss and gradient are finite, in every stage.
    """

    def __init__(self, parts: Sequence[Part], num_replicas: int) -> None:
        self._parameters = np.cumsum([0, *(len(part.trainable()) for part in parts)]).tolist()
        self._buffers = np.cumsum([0, *(part.num_buffers for part in parts)]).tolist()
        self.losses = np.zeros(num_replicas)
        self.finite = np.ones(num_replicas, dtype=bool)
        self._present = np.zeros(self._parameters[-1], dtype=bool)
        self._changed = np.zeros(self._buffers[-1], dtype=bool)

    @property
    def is_reached(self) -> bool:
        """Whether some parameter has a gradient."""
        return bool(self._present.any())

    def note(self, stage: Stage, losses: Mapping[int, float]) -> None:
        """Take over what a stage of this rank has found, and the losses that are known here."""
        self._of(self._present, self._parameters, stage)[:] = stage.present
        self._of(self._changed, self._buffers, stage)[:] = stage.changed
        for replica, is_finite in stage.finite.items():
            self.finite[replica] &= is_finite
        for replica, loss in losses.items():
            self.losses[replica] = loss
            self.finite[replica] &= np.isfinite(loss)

    def tell(self, stage: Stage) -> None:
        """Give a stage of this rank what all ranks have found."""
        stage.present[:] = self._of(self._present, self._parameters, stage)
        stage.changed[:] = self._of(self._changed, self._buffers, stage)

    def merge(
        self, transport: Transport, mesh: Mesh, rows: Sequence[range], head: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Replace every field by what all ranks together know, and return every rank's head; collective.

        Args:
            transport: Joins the ranks.
            mesh: The last process of each pipeline knows its losses.
            rows: The replicas of each pipeline.
            head: 64-bit numbers of this rank.
        """
        told = tell_all(transport, head, [self.losses, self.finite, self._present, self._changed])
        for rank, (_, (losses, finite, present, changed)) in enumerate(told):
            if rank // mesh.pipelines == mesh.width - 1:
                own = slice(rows[rank % mesh.pipelines].start, rows[rank % mesh.pipelines].stop)
                self.losses[own] = losses[own]
            self.finite &= finite
            self._present |= present
            self._changed |= changed
        return [numbers for numbers, _ in told]

    @staticmethod
    def _of(values: npt.NDArray[np.bool_], starts: list[int], stage: Stage) -> npt.NDArray[np.bool_]:
        return values[starts[stage.index] : starts[stage.index + 1]]
