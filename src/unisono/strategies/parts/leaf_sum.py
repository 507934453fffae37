"""The sum of a step's replicas along the canonical tree: gradients and buffers, in flat buffers that are used again."""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from unisono.collectives.exchange import exchange_over
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node
from unisono.strategies.parts.flat import FlatBuffer, Layout, are_finite, strided
from unisono.strategies.parts.fold import EarlyFold, Fold
from unisono.strategies.parts.overlap import Overlap
from unisono.strategies.parts.replica_buffers import ReplicaBuffers


@final
class LeafSum:
    """Adds up what the replicas leave, one after the other, and puts the sum into the model.

    A step is `start_step`, `add` for each replica, `reduce`, `finish_step`. With `start_replica` before the passes of a
    replica, its large gradients are added while others are computed; those of the rank's last one leave for the other
    ranks meanwhile.

    Args:
        parameters: Their gradients are added, by name.
        buffers: The buffers that go with them.
        transport: Joins the ranks that hold both.
        overlaps: Whether gradients may leave so; None: where that is worth it. False: none is taken off the model
            before the backward pass is over.
        codec: How they are coded on their way: ``none``, ``planes``, or ``auto``.

    Attributes:
        trainable: Those of the parameters that are trainable in this step, by name.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], buffers: ReplicaBuffers, transport: Transport,
        overlaps: bool | None = False, codec: str = "none",
    ) -> None:  # fmt: skip
        self._parameters, self._buffers, self._transport, self._overlaps = parameters, buffers, transport, overlaps
        self._codec = codec
        self._overlap: Overlap | None = None
        self._early: EarlyFold | None = None
        self._sent: Fold | None = None  # the last replica, if its gradients leave while they are computed
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
            self._start_layout()
        elif self._total is not None:
            self._pool.append(self._total)
        self._total, self._sent, self._leaves = None, None, leaves
        self._sums: list[tuple[Node, FlatBuffer]] = []
        for parameter in self._parameters.values():  # frozen ones too: an old gradient would go on being applied
            parameter.grad = None

    def start_replica(self, replica: int, placement: Sequence[range], *, is_last: bool) -> None:
        """Begin the passes of a replica.

        Args:
            replica: Its index.
            placement: The replicas of each rank.
            is_last: Whether it is the rank's last one in this step.
        """
        if is_last and self._overlap is not None:
            if self._overlap.watch():
                self._sent = self._fold(replica)
                self._overlap.start(self._sent, placement)
        elif self._early is not None:
            self._early.start(lambda: self._fold(replica))

    def add(self, replica: int, floats: Sequence[Tensor], present: npt.NDArray[np.bool_]) -> bool:
        """Take the gradients of the rank's next replica off the model, and add them up as far as the tree allows.

        Args:
            replica: Its index.
            floats: What it has left in the floating-point buffers, weighted.
            present: bool (trainable parameters,): set where there is a gradient.

        Returns:
            Whether its gradients are finite; True where only `reduce` knows.
        """
        if self._overlap is not None:
            self._overlap.end_backward(present)
            if self._sent is not None:
                self._overlap.seal(floats)
                return True
        early, taken = (None, {}) if self._early is None else self._early.end()
        grads = [strided(name, parameter.grad) for name, parameter in self.trainable.items()]
        present |= np.fromiter((grad is not None for grad in grads), bool, len(grads))
        fold = self._fold(replica) if early is None else early
        if taken:
            rest = [index for index in range(len(grads)) if index not in taken]
            present[[*taken]] = True
            grads = [grads[index] for index in rest]
            fold.put(rest, grads)
            is_finite = all(taken.values()) and fold.are_finite(rest, grads)
        else:
            fold.put(range(len(grads)), grads)
            is_finite = fold.target.is_finite() or are_finite(grads)
        fold.put_floats(floats)
        self._sums = fold.sums(lambda buffer: buffer, self._add)
        for parameter in self.trainable.values():
            parameter.grad = None
        return is_finite

    def reduce(self, placement: Sequence[range]) -> tuple[int, bool]:
        """Finish the tree over all ranks; collective.

        Args:
            placement: The replicas of each rank.

        Returns:
            The checksum of the sum; whether the gradients of this rank's last replica are finite, as far as `add` has
            not said so.
        """
        is_finite = True
        if self._sent is not None and self._overlap is not None:
            is_finite = self._overlap.wait()
            self._sums = self._sent.sums(lambda buffer: buffer, self._keep_left)  # added already, piece by piece
        total = self._sums[0][1] if self._sums else self._new_leaf()
        if self._sent is None:
            self._exchange_all(total, placement)
        self._pool += [buffer for _, buffer in self._sums[1:]]
        self._total, self._sums = total, []
        self._merged: list[Tensor] = []
        for view, is_saved in zip(total.buffers, self._buffers.is_saved(), strict=True):
            self._merged.append(view if is_saved else view.clone())
            if not is_saved:  # a resumed run has other values there: no part of the record
                view.zero_()
        return total.checksum(), is_finite

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

    def give_up(self) -> None:
        """Leave a step that has failed."""
        for part in (self._overlap, self._early):
            if part is not None:
                part.give_up()

    def close(self) -> None:
        """Take everything off the model; safe to call twice."""
        for part in (self._overlap, self._early):
            if part is not None:
                part.close()

    def _start_layout(self) -> None:
        self.close()
        on_cpu = all(tensor.device.type == "cpu" for tensor in [*self.trainable.values(), *self._buffers.floats()])
        self._exchange, self._overlap = exchange_over(self._transport, on_cpu=on_cpu), None
        self._exchange.choose_codec(self._codec)
        may_overlap = self._exchange.is_overlapped if self._overlaps is None else self._overlaps
        may_overlap &= self._transport.world_size > 1 and not self._transport.is_one_thread
        self._buckets = self._layout.buckets(are_cut=may_overlap or self._exchange.is_overlapped)
        may_overlap &= bool(self.trainable) and len(self._buckets) > 1
        self._early = None if self._overlaps is False else EarlyFold(self.trainable, 1 + may_overlap)
        if may_overlap:
            hooked = frozenset[int]() if self._early is None else self._early.hooked
            self._overlap = Overlap(self.trainable, self._buckets, self._exchange, hooked)

    def _exchange_all(self, total: FlatBuffer, placement: Sequence[range]) -> None:
        """Sum what all ranks have into `total`."""
        if self._transport.world_size > 1 and self._buckets:
            self._exchange.start([bucket.of(total) for bucket in self._buckets], placement, self._leaves)
            for bucket in self._buckets:
                self._exchange.give([(node, bucket.of(buffer)) for node, buffer in self._sums])
            self._exchange.finish()

    def _new_leaf(self) -> FlatBuffer:
        return self._pool.pop() if self._pool else self._layout.new_buffer()

    def _keep_left(self, left: FlatBuffer, right: FlatBuffer) -> FlatBuffer:
        self._pool.append(right)
        return left

    def _fold(self, replica: int) -> Fold:
        return Fold(self._sums, replica, self._leaves, self._new_leaf)

    def _add(self, left: FlatBuffer, right: FlatBuffer) -> FlatBuffer:
        self._pool.append(right)
        return left.add_(right)
