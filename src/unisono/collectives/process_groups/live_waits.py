"""The waits of an exchange between ranks of which one may be lost."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from unisono.collectives.process_groups.waits import Waits
from unisono.collectives.shm.live_boards import LetGo
from unisono.collectives.transport import Transport
from unisono.errors import PeerLost

if TYPE_CHECKING:
    from unisono.collectives.process_groups.live_groups import LiveGroupTransport


@final
class LiveWaits(Waits):
    """The waits of all exchanges of one epoch: they end when the ranks are called to another one.

    A thread that is let go raises `LetGo`, and none enters any more.

    Args:
        transport: Joins the ranks.
        group: Of these ranks.
        timeout_s: Longest wait for a rank that lives.
    """

    def __init__(self, transport: "LiveGroupTransport", group: Any, timeout_s: float) -> None:
        super().__init__(transport)
        self._live, self._group, self._longest = transport, group, timedelta(seconds=timeout_s)
        self._is_left = False

    def agree(self, what: str, number: int) -> list[int]:
        return _Unsealed(self, self._live, self._group).agree(self._live.told(what), number)

    @contextlib.contextmanager
    def named(self, operation: str) -> Iterator[None]:
        self._look()
        try:
            with super().named(operation):
                yield
        except PeerLost as error:
            raise LetGo(str(error), self._live.answer) from error

    def wait(self, work: Any) -> None:
        work.wait(self._longest)  # by itself it takes the time that connecting may take

    def seal(self, tag: int) -> None:
        self._live.seal(lambda: self._meet(tag))

    def let_go(self) -> None:
        """Let all threads go that wait."""
        with self._changed:
            if self._inside:
                self._break_off(self._group)

    def close(self, group: Any) -> None:
        with self._changed:
            self._is_left = True
        super().close(group)

    def _meet(self, tag: int) -> None:
        """Tell the others that this rank has all of an exchange, and return when each has said so."""
        own, rank, size = self._group, self._live.rank, self._live.world_size
        others = [other for other in range(size) if other != rank]
        places = torch.zeros(size, 1, dtype=torch.uint8)
        with self.within("end of an exchange"):
            works = [own.recv([places[other]], other, tag) for other in others]
            works += [own.send([places[rank]], other, tag) for other in others]
            for work in works:
                self.wait(work)

    def _look(self) -> None:
        live = self._live.live
        if self._is_left or (live is not None and live.is_called):
            raise LetGo("the ranks are called to another world", self._live.answer)


@final
class _Unsealed(Transport):
    """What the ranks agree by at the beginning of an exchange, whose seal is this one's too."""

    def __init__(self, waits: LiveWaits, live: "LiveGroupTransport", group: Any) -> None:
        self.rank, self.world_size, self.bytes_sent = live.rank, live.world_size, 0
        self._waits, self._group = waits, group

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        raise NotImplementedError("ranks agree by all_gather alone")

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        with self._waits.within("exchange of gradients"):
            self._waits.wait(self._group._allgather_base(recv, send))
