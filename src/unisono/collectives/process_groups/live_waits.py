"""The waits of an exchange between ranks of which one may be lost."""

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn, final

import torch
from torch import Tensor

from unisono.collectives.process_groups.waits import Waits
from unisono.collectives.shm.board import Watcher
from unisono.collectives.shm.live_boards import LetGo
from unisono.collectives.transport import Transport
from unisono.errors import PeerLost
from unisono.system.helper import Helper

_END = "end of an exchange"
_LOOK_S = 0.02
_LOOK = timedelta(seconds=1)
"""How often a collective is left to see whether the ranks are called; its wait may then go on, unlike a message's."""


class Asking(Transport):
    """A transport that knows whom to ask whether the world has changed."""

    live: Watcher | None  #: Asked while waiting; None where ranks do not go on without one that has died.

    @abstractmethod
    def answer(self, why: str) -> NoReturn:
        """Say what it means that a wait for pieces of an exchange has been let go."""

    @abstractmethod
    def seal(self, begin: Callable[[], Callable[[], None]]) -> Callable[[], None]:
        """Begin to meet behind an exchange, of which this rank has got all, and return what waits for the others.

        Args:
            begin: Tells the others, and returns the same.
        """


@final
class LiveWaits(Waits):
    """The waits of all exchanges of one epoch: they end when the ranks are called to another one.

    A thread that is let go raises `LetGo`, and none enters any more.

    Args:
        transport: Joins the ranks.
        group: Of these ranks.
        timeout_s: Longest wait for a rank that lives.
    """

    def __init__(self, transport: Asking, group: Any, timeout_s: float) -> None:
        super().__init__(transport)
        self._live, self._group, self._longest = transport, group, timedelta(seconds=timeout_s)
        self._is_left = False
        self._expected: dict[int, tuple[Tensor, list[Any]]] = {}
        self._sending: list[Any] = []
        self._helper: Helper | None = None

    def agree(self, what: str, number: int) -> list[int]:
        return _Unsealed(self, self._live, self._group).agree(self._live.told(what), number)

    @contextlib.contextmanager
    def named(self, operation: str) -> Iterator[None]:
        self._look()
        with self._letting_go(), super().named(operation):
            yield

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        with super().entered(), self._letting_go():
            yield

    def run(self, wait: Callable[[], None]) -> None:
        # Of a message that has come in part, gloo's wait is ended by nothing when its sender dies: neither by the end
        # of the connection nor by other waits. So another thread waits, which is left behind when the ranks are called.
        if self._helper is None:
            self._helper = Helper("unisono-arrive")
        done = self._helper.begin(wait)
        try:
            while not done.done():
                with contextlib.suppress(TimeoutError):
                    done.exception(_LOOK_S)
                self._look()
        except LetGo:
            self._num_left += not done.done()
            raise
        done.result()

    def wait(self, work: Any, every: timedelta | None = None) -> None:
        """Return when a message is there, or a collective is done: that wait may be left, `every` so often, to look."""
        until = time.monotonic() + self._longest.total_seconds()
        while True:
            began = time.monotonic()
            try:
                # By itself it takes the time that connecting may take. A collective may hold messages as in `sent`.
                work.wait(every or self._longest)
            except RuntimeError:
                now = time.monotonic()  # a wait that ends before its time has failed
                if every is None or now < began + 0.9 * every.total_seconds() or now > until:
                    raise
                self._look()
            else:
                return

    def sent(self, works: Sequence[Any]) -> None:
        # Not waited for: a message to a rank that dies just then is in no list of gloo's, and nothing ends its wait.
        # When all have sealed, all messages before the seals have come; until then nothing may drop them.
        self._sending += works

    def expect_seal(self, tag: int) -> None:
        rank, size = self._live.rank, self._live.world_size
        places = torch.zeros(size, 1, dtype=torch.uint8)
        works = [self._group.recv([places[other]], other, tag) for other in range(size) if other != rank]
        self._expected[tag] = places, works

    def seal(self, tag: int) -> Callable[[], None]:
        return self._live.seal(lambda: self._meet(tag))

    def let_go(self) -> None:
        """Let all threads go that wait."""
        with self._changed:
            if self._inside:
                self._break_off(self._group)

    def close(self, group: Any) -> None:
        with self._changed:
            self._is_left = True
        if self._helper is not None:
            self._helper.end()
        super().close(group)

    def _meet(self, tag: int) -> Callable[[], None]:
        """Tell the others that this rank has all of an exchange, and return what waits until each has said so."""
        rank, (places, works) = self._live.rank, self._expected.pop(tag)
        with self.named(_END):
            seals = [self._group.send([places[rank]], other, tag) for other in range(len(places)) if other != rank]

        def wait() -> None:
            with self.within(_END):
                for work in works:
                    self.wait(work)
            self._sending = seals

        return wait

    @contextlib.contextmanager
    def _letting_go(self) -> Iterator[None]:
        try:
            yield
        except PeerLost as error:
            raise LetGo(str(error), self._live.answer) from error

    @property
    def is_called(self) -> bool:
        """Whether nobody waits any more: what the boards of this host's ranks ask."""
        live = self._live.live
        return self._is_left or (live is not None and live.is_called)

    def at(self, meeting: int) -> bool:
        """Let a thread go that waits in one of those boards, whose meetings are parts of an exchange."""
        raise LetGo("the ranks are called to another world", self._live.answer)

    def is_word_due(self) -> bool:
        """Whether a thread waits there for the launcher's word: the one that trains does."""
        return False

    def _look(self) -> None:
        if self.is_called:
            self.at(0)


@final
class _Unsealed(Transport):
    """What the ranks agree by at the beginning of an exchange, whose seal is this one's too."""

    def __init__(self, waits: LiveWaits, live: Asking, group: Any) -> None:
        self.rank, self.world_size, self.bytes_sent = live.rank, live.world_size, 0
        self._waits, self._group = waits, group

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        raise NotImplementedError("ranks agree by all_gather alone")

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        with self._waits.within("exchange of gradients"):
            self._waits.wait(self._group._allgather_base(recv, send), _LOOK)
