"""The sum of a step's replicas along the canonical tree: gradients and buffers, in flat buffers that are used again."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unisono.collectives.coding.rounding import Rounding
from unisono.collectives.exchange import OneByOne, exchange_over
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node
from unisono.errors import ConfigError
from unisono.strategies.parts.flat import NO_TENSOR, STRIDED, FlatBuffer, Layout, are_finite, strided
from unisono.strategies.parts.fold import NONE, EarlyFold, Fold, leave
from unisono.strategies.parts.overlap import Overlap
from unisono.strategies.parts.replica_buffers import ReplicaBuffers


def _are_finite(fold: Fold, grads: Sequence[Tensor | None]) -> bool:
    return fold.target.is_finite() or (fold.rounding is None and are_finite(grads))


@functools.lru_cache(maxsize=64)
def _others(taken: frozenset[int], count: int) -> tuple[int, ...]:
    """Return which of so many indices are not `taken`, ascending."""
    return tuple(index for index in range(count) if index not in taken)


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
        rounding: How the gradients of every replica and every sum of them are rounded; None: not at all.
        sparse: The parameters whose gradients may be sparse, by name; they are added densely.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], buffers: ReplicaBuffers, transport: Transport,
        overlaps: bool | None = False, codec: str = "none", rounding: Rounding | None = None,
        sparse: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self._parameters, self._buffers, self._transport, self._overlaps = parameters, buffers, transport, overlaps
        self._codec, self._rounding, self._all = codec, rounding, [*parameters.values()]
        self._sparse = sparse
        self._overlap: Overlap | None = None
        self._early: EarlyFold | None = None
        self._sent: Fold | None = None  # the last replica, if its gradients leave while they are computed
        self._flags: list[bool] | None = None
        self._total: FlatBuffer | None = None  # whose views are the gradients now
        #: Those of the parameters that are trainable in this step, by name.
        self.trainable: dict[str, nn.Parameter] = {}

    def start_step(self, leaves: int, step: int = 0, number: int = 0) -> None:
        """Forget the step before, lay out anew what has been frozen or unfrozen; the tree has so many leaves.

        The `number` is that of updates of the same step before this one.
        """
        if self._rounding is not None:
            self._rounding = self._rounding.at_step(step + (number << 40))
        flags = [*map(_REQUIRES_GRAD, self._all)]
        if flags != self._flags:
            self._flags = flags
            self.trainable = {name: part for name, part in self._parameters.items() if part.requires_grad}
            self._trained = [*self.trainable.values()]
            self._every, self._plain = (*range(len(self._trained)),), [STRIDED] * len(self._trained)
            self._check_rounded()
            self._layout = Layout(
                self._trained, self._buffers.floats(), self._transport.world_size, are_apart=self._rounding is not None
            )
            self._pool: list[FlatBuffer] = []
            self._start_layout()
        elif self._total is not None:
            self._pool.append(self._total)
        self._total, self._sent, self._leaves, self._is_spoilt = None, None, leaves, False
        self._sums: list[tuple[Node, FlatBuffer]] = []
        leave(self._all, NONE)  # frozen ones too: an old gradient would go on being applied

    def start_replica(self, replica: int, placement: Sequence[range], *, is_last: bool) -> None:
        """Begin the passes of a replica."""
        if is_last and self._overlap is not None:
            if self._overlap.watch():
                self._sent = fold = self._fold(replica)
                self._out = self._place_of_total(placement, fold.out)
                self._overlap.start(fold, placement, self._out)
        elif self._early is not None:
            self._early.start(lambda: self._fold(replica))

    def add(
        self, replica: int, floats: Sequence[Tensor], present: npt.NDArray[np.bool_],
        look: Callable[[Fold, Sequence[Tensor | None]], Any] = _are_finite,
    ) -> Any:  # fmt: skip
        """Take the gradients of the rank's next replica off the model, and add them up as far as the tree allows.

        Args:
            replica: Its index.
            floats: What it has left in the floating-point buffers, weighted.
            present: bool (trainable parameters,): set where there is a gradient.
            look: What is to be known of its gradients, which lie in the fold; by itself, whether they are finite.

        Returns:
            What `look` does; where gradients leave while they are computed, or are taken early: whether they are
            finite; True where only `reduce` knows.
        """
        if self._overlap is not None:
            self._overlap.end_backward(present)
            if self._sent is not None:
                self._overlap.seal(floats)
                return True
        early, taken = _NOT_EARLY if self._early is None else self._early.end()
        rest = _others(frozenset(taken), len(self._trained)) if taken else self._every
        grads = self._look_at(rest, present)
        fold = self._fold(replica) if early is None else early
        found = self._take_in(fold, rest, grads, taken, look)
        if floats:
            fold.put_floats(floats)
        settle = None if self._rounding is None else self._settle
        self._sums = fold.sums(_whole, lambda left, right: self._keep_left(left.add_(right), right), settle)
        leave(self._trained, NONE)
        return found

    def _look_at(self, indices: Sequence[int], present: npt.NDArray[np.bool_]) -> list[Tensor | None]:
        """Return the gradients of some parameters, by their indices; set in `present` who has one, and all others."""
        trained = self._trained if indices is self._every else [self._trained[index] for index in indices]
        grads = [*map(_GRAD, trained)]
        if NO_TENSOR not in {*map(type, grads)} and [*map(_LAYOUT, grads)] == self._plain[: len(grads)]:
            present.fill(True)  # as nearly always
            return grads
        names, had = [*self.trainable], present[[*indices]]
        present.fill(True)
        for place, index in enumerate(indices):
            grads[place] = strided(names[index], grads[place], self._sparse)
            present[index] = had[place] or grads[place] is not None
        return grads

    def reduce(self, placement: Sequence[range]) -> tuple[int, bool]:
        """Finish the tree over all ranks; return the checksum of the sum, and what `send` does; collective."""
        is_finite = self.send(placement)
        return self.finish_unread().checksum(), is_finite

    def send(self, placement: Sequence[range]) -> bool:
        """Do the first part of `reduce`: return when this rank's sums are on their way.

        Returns:
            Whether the gradients of its last replica are finite, as far as `add` has not said so.
        """
        if self._sent is not None and self._overlap is not None:
            is_finite = self._overlap.wait_sent()
            self._sums = self._sent.sums(_whole, self._keep_left)  # added already, piece by piece
            self._total = self._out
            return is_finite
        self._total = self._place_of_total(placement, self._sums[0][1] if self._sums else None)
        if self._is_exchanged:
            roundings = [bucket.rounding(self._rounding) for bucket in self._buckets]
            outs = [bucket.of(self._total) for bucket in self._buckets]
            self._exchange.start(outs, placement, self._leaves, roundings if any(roundings) else ())
            for bucket in self._buckets:
                self._exchange.give([(node, bucket.of(buffer)) for node, buffer in self._sums])
        return True

    def tell(self, message: Tensor) -> Callable[[], Tensor]:
        """Give all ranks a few bytes, after `send`; see `Exchange.tell`."""
        return (self._exchange if self._buckets else OneByOne(self._transport)).tell(message)

    def await_seal(self) -> None:
        """Return when all ranks have what `tell` and `arrive` gave them; see `Exchange.await_seal`."""
        self._exchange.await_seal()

    def finish_unread(self) -> FlatBuffer:
        """Do the second part of `reduce`, after `send`; return the sum, of which nothing has been read; collective."""
        total = self.arrive()
        self.part_buffers()
        return total

    def arrive(self) -> FlatBuffer:
        """Return the sum when it is here: it may be on its way to others, and is to be read alone; see `await_seal`."""
        assert self._total is not None
        total = self._total
        if self._sent is not None and self._overlap is not None:
            self._overlap.wait()
        elif self._is_exchanged:
            self._exchange.finish()
        self._pool += [buffer for _, buffer in self._sums if buffer is not total]
        self._sums = []
        return total

    def part_buffers(self) -> None:
        """Take buffers that are not saved out of the sum, after `arrive`; awaits the seal where there are any."""
        assert self._total is not None
        self._merged = self._buffers.part(self._total.buffers, self.await_seal) if self._total.buffers else []

    def scale(self, factor: float) -> tuple[int, bool]:
        """Multiply the gradients of the whole sum; return its checksum, and whether they are finite."""
        assert self._total is not None
        self.await_seal()
        return self._total.scale(factor), self._total.is_finite()

    def finish_step(
        self, present: npt.NDArray[np.bool_], changed: npt.NDArray[np.bool_], counted: npt.NDArray[np.int64], *,
        is_kept: bool,
    ) -> None:  # fmt: skip
        """Leave gradients and buffers in the model; collective where `ReplicaBuffers.finish_step` is.

        Args:
            present: bool (trainable parameters,): some replica of the whole step has a gradient for it.
            changed: bool (buffers,): some replica of the whole step has changed it.
            counted: int64 (numbers that are counted,): the largest values that replicas of the whole step have left.
            is_kept: Whether an update follows; otherwise the buffers stay as they were.
        """
        assert self._total is not None
        if is_kept:
            self._buffers.finish_step(self._transport, self._merged, changed, counted)
        else:
            self._buffers.start_replica()
        grads: Sequence[Tensor | None] = self._total.gradients
        if 0 in (has := present.tobytes()):
            grads = [view if each else None for view, each in zip(grads, has, strict=True)]
        leave(self._trained, grads)
        if not is_kept:
            self._pool, self._total = [], None  # see `_new_leaf`

    def forget(self) -> None:
        """Lay out anew in the next step, and use no sum of this one again: the ranks are others."""
        self._flags, self._total, self._sums = None, None, []

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
        may_overlap &= self._transport.world_size > 1 and not self._transport.is_one_thread and not self._sparse
        self._buckets = self._layout.buckets(are_cut=may_overlap or self._exchange.is_overlapped)
        self._is_exchanged = self._transport.world_size > 1 and bool(self._buckets)
        may_overlap &= bool(self.trainable) and len(self._buckets) > 1
        early = None if self._overlaps is False else EarlyFold(self.trainable, 1 + may_overlap)
        hooked = frozenset[int]() if early is None else early.hooked
        self._early = early if hooked else None
        if may_overlap:
            self._overlap = Overlap(self.trainable, self._buckets, self._exchange, hooked)

    def _place_of_total(self, placement: Sequence[range], own: FlatBuffer | None) -> FlatBuffer:
        """Return where the sum of the whole tree comes: this rank's first sum, or what holds none."""
        is_apart = self._is_exchanged and self._exchange.lies_apart(placement, self._leaves)
        return self._new_leaf() if own is None or is_apart else own

    def _new_leaf(self) -> FlatBuffer:
        # A block that is rounded to NaN reaches into places between gradients, which nothing clears.
        if not self._pool:
            return self._layout.new_buffer()
        return self._pool.pop().clear() if self._is_spoilt else self._pool.pop()

    def _take_in(
        self, fold: Fold, rest: tuple[int, ...], grads: Sequence[Tensor | None], taken: Mapping[int, int],
        look: Callable[[Fold, Sequence[Tensor | None]], Any],
    ) -> Any:  # fmt: skip
        """Put the `rest`, which was not `taken` early, into a fold; round all; return what `add` does."""
        if taken:
            fold.put(rest, grads)
            if self._rounding is None:
                return all(taken.values()) and fold.are_finite(rest, grads)
        else:
            fold.put_all(grads)
            if self._rounding is None:
                return look(fold, grads)
        for bucket in self._buckets:
            fold.round_leaf(bucket)
        found = look(fold, grads)  # what is finite may have been rounded to infinity
        self._is_spoilt |= found is not True  # on a GPU only the whole step's read tells
        return found

    def _keep_left(self, left: FlatBuffer, right: FlatBuffer) -> FlatBuffer:
        self._pool.append(right)
        return left

    def _fold(self, replica: int) -> Fold:
        return Fold(self._sums, replica, self._leaves, self._new_leaf, self._rounding)

    def _settle(self, node: Node, total: FlatBuffer) -> FlatBuffer:
        """Round a sum in its place."""
        for bucket in self._buckets:
            rounding = bucket.rounding(self._rounding)
            if rounding is not None:
                rounding.round_(node, bucket.of(total))
        return total

    def _check_rounded(self) -> None:
        """Refuse gradients that cannot be rounded."""
        for name, parameter in self.trainable.items() if self._rounding is not None else ():
            if parameter.dtype != torch.float32:
                raise ConfigError(
                    f"compress rounds gradients of float32, got {name!r} of {str(parameter.dtype)[6:]}. "
                    "Hint: model.float(), or leave compress out."
                )


def _whole(buffer: FlatBuffer) -> FlatBuffer:
    return buffer


_REQUIRES_GRAD, _GRAD = operator.attrgetter("requires_grad"), operator.attrgetter("grad")
_LAYOUT = operator.attrgetter("layout")
_NOT_EARLY: tuple[Fold | None, Mapping[int, int]] = (None, {})
