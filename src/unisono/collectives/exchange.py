"""The sum of a buffer along the canonical tree, bucket by bucket, so that it can begin before the last one is there.

An `Exchange` is what a step holds of its transport: `start`, `give` for every bucket in the order of
`pieces.cut_into_buckets`, `finish`. Where a transport has nothing better, a bucket is one `tree_all_reduce`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor

from unisono.collectives.coding.rounding import Rounding
from unisono.collectives.reduce import note_of, tree_all_reduce
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node

Partials = Sequence[tuple[Node, Tensor]]
"""Subtrees of one rank and their sums: contiguous one-dimensional tensors of equal length."""

Roundings = Sequence[Rounding | None]
"""How each bucket's sums are rounded, and so coded on their way; None: they are not. Empty: none is."""


class Exchange(ABC):
    """Sums the buckets of one step after the other; all ranks call it alike, with buckets of equal lengths.

    Where a rank goes away, whatever waits for it raises `PeerLost`.
    """

    is_overlapped: bool = False  #: Whether beginning before all buckets are there is worth two threads.

    def lies_apart(self, placement: Sequence[range], leaves: int) -> bool:
        """Whether the results of such a step are to lie in other memory than what is given.

        Args:
            placement: See `start`.
            leaves: The same.
        """
        return False

    @abstractmethod
    def start(self, outs: Sequence[Tensor], placement: Sequence[range], leaves: int, roundings: Roundings = ()) -> None:
        """Begin a step.

        Args:
            outs: Each bucket's place for the result, in the order in which they will be given. A bucket's partials may
                lie in the same memory, where `lies_apart` does not say otherwise.
            placement: The leaves that each rank hosts, in rank order.
            leaves: Leaves of the tree (replicas that have a sample), at least 1.
            roundings: Of the buckets; what is given must be rounded already.

        Raises:
            RankDivergence: The ranks are about to exchange other sizes.
            PeerLost: A rank went away.
        """

    @abstractmethod
    def give(self, partials: Partials) -> None:
        """Hand over this rank's partial sums of the next bucket; they must stay as they are until `finish` is done."""

    @abstractmethod
    def finish(self) -> None:
        """Return when every bucket's result is in its place; a second thread may call it right after `start`."""

    @abstractmethod
    def tell(self, message: Tensor) -> Callable[[], Tensor]:
        """Give all ranks a few bytes in the same step, after the last bucket: uint8, the same number on all.

        Returns:
            What waits for those of all ranks and returns them, uint8 (ranks, bytes), to be called after `finish`; it
            may raise PeerLost.
        """

    def await_seal(self) -> None:  # noqa: B027 - most have nothing more to wait for
        """Return when what all ranks were to get in this step is there, after what `tell` has returned.

        Until then another rank may lack what this one has, and what it gets may lie in this one's results: they are
        read alone, and nothing that stays may follow from them.
        """

    def choose_codec(self, mode: str) -> None:  # noqa: B027 - most send nothing over a wire
        """Say how what crosses the wire is coded from the next step on: ``none``, ``planes``, or ``auto``."""

    def give_up(self) -> None:  # noqa: B027 - most have nothing that waits
        """Let a thread in `finish` return: no more will be given."""


class OneByOne(Exchange):
    """Sums each bucket when it is given, and waits for it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def start(self, outs: Sequence[Tensor], placement: Sequence[range], leaves: int, roundings: Roundings = ()) -> None:
        self._placement, self._leaves = placement, leaves
        self._buckets = zip(outs, roundings or [None] * len(outs), strict=True)
        on_board = self._transport.board is not None and all(out.device.type == "cpu" for out in outs)
        if outs and (roundings or not on_board):
            self._transport.agree(note_of(outs, leaves, roundings))

    def give(self, partials: Partials) -> None:
        out, rounding = next(self._buckets)
        tree_all_reduce(
            partials, self._placement, self._leaves, out, self._transport, is_agreed=True, rounding=rounding
        )

    def finish(self) -> None:
        pass

    def tell(self, message: Tensor) -> Callable[[], Tensor]:
        def wait() -> Tensor:
            rows = message.new_empty(self._transport.world_size, len(message))
            self._transport.all_gather(message, rows.view(-1))
            return rows

        return wait


def exchange_over(transport: Transport, *, on_cpu: bool = True) -> Exchange:
    """Return the way in which a transport sums buckets; one of its own is for CPU tensors."""
    return OneByOne(transport) if transport.make_exchange is None or not on_cpu else transport.make_exchange()
