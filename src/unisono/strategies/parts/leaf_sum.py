"""The sum of a step's replicas along the canonical tree: gradients and buffers, in flat buffers that are used again."""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node, push
from unisono.strategies.parts.flat import FlatBuffer, Layout, take_gradients
from unisono.strategies.parts.replica_buffers import ReplicaBuffers


@final
class LeafSum:
    """Adds up what the replicas leave, one after the other, and puts the sum into the model.

    A step is `start_step`, `take` and `add` for each replica, `reduce`, `finish_step`.

    Args:
        parameters: Their gradients are added, by name.
        buffers: The buffers that go with them.
        transport: Joins the ranks that hold both.

    Attributes:
        trainable: Those of the parameters that are trainable in this step, by name.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], buffers: ReplicaBuffers, transport: Transport) -> None:
        self._parameters, self._buffers, self._transport = parameters, buffers, transport
        self._flags: list[bool] | None = None
        self._total: FlatBuffer | None = None  # whose views are the gradients now
        self.trainable: dict[str, nn.Parameter] = {}

    def start_step(self, leaves: int) -> None:
        """Forget the step before, lay out anew what has been frozen or unfrozen; the tree has so many leaves."""
        flags = [parameter.requires_grad for parameter in self._parameters.values()]
        if flags != self._flags:
            self._flags = flags
            self.trainable = {name: part for name, part in self._parameters.items() if part.requires_grad}
            self._layout = Layout([*self.trainable.values()], self._buffers.floats(), self._transport.world_size)
            self._pool: list[FlatBuffer] = []
        elif self._total is not None:
            self._pool.append(self._total)
        self._total, self._leaves = None, leaves
        self._sums: list[tuple[Node, FlatBuffer]] = []
        for parameter in self._parameters.values():  # frozen ones too: an old gradient would go on being applied
            parameter.grad = None

    def take(self, present: npt.NDArray[np.bool_]) -> FlatBuffer:
        """Move a replica's gradients into a leaf; the caller fills in the leaf's buffers.

        Args:
            present: bool (trainable parameters,): set where there is a gradient.
        """
        leaf = self._pool.pop() if self._pool else self._layout.new_buffer()
        take_gradients(self.trainable, leaf, present)
        return leaf

    def add(self, replica: int, leaf: FlatBuffer) -> None:
        """Add the leaf of the next replica of this rank, as far as the tree allows."""
        push(self._sums, replica, leaf, self._leaves, self._add)

    def reduce(self, placement: Sequence[range]) -> int:
        """Finish the tree over all ranks, and return the checksum of the sum; collective.

        Args:
            placement: The replicas of each rank.
        """
        total = self._sums[0][1] if self._sums else self._layout.new_buffer()
        if self._transport.world_size > 1 or len(self._sums) != 1:
            for group, out in enumerate(total.flats):
                partials = [(node, buffer.flats[group]) for node, buffer in self._sums]
                tree_all_reduce(partials, placement, self._leaves, out, self._transport)
        self._pool += [buffer for _, buffer in self._sums[1:]]
        self._total, self._sums = total, []
        self._merged: list[Tensor] = []
        for view, is_saved in zip(total.buffers, self._buffers.is_saved(), strict=True):
            self._merged.append(view if is_saved else view.clone())
            if not is_saved:  # a resumed run has other values there: no part of the record
                view.zero_()
        return total.checksum()

    def finish_step(self, present: npt.NDArray[np.bool_], changed: npt.NDArray[np.bool_], *, is_kept: bool) -> None:
        """Leave gradients and buffers in the model; collective.

        Args:
            present: bool (trainable parameters,): some replica of the whole step has a gradient for it.
            changed: bool (buffers,): some replica of the whole step has changed it.
            is_kept: Whether an update follows; otherwise the buffers stay as they were.
        """
        assert self._total is not None
        if is_kept:
            self._buffers.finish_step(self._transport, self._merged, changed)
        else:
            self._buffers.start_replica()
        for parameter, view, has in zip(self.trainable.values(), self._total.gradients, present.tolist(), strict=True):
            parameter.grad = view if has else None

    def _add(self, left: FlatBuffer, right: FlatBuffer) -> FlatBuffer:
        self._pool.append(right)
        return left.add_(right)
