"""The shared memory of a world that has lost or gained ranks: a new board for its ranks, with no other way to meet.

The first of them makes the memory before it says that it is ready, and the launcher tells the others where it lies.
Nothing of an old board is used again: a rank that was lost may still write there until it is gone.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Generic, NoReturn, Protocol, TypeVar, final

from unisono.collectives.loopback import LoopbackTransport
from unisono.collectives.shm.board import SharedBoard, Watcher
from unisono.collectives.shm.transport import SLOT_BYTES, ShmTransport
from unisono.collectives.shm.tuning import Plan
from unisono.collectives.transport import TIMEOUT_S, Transport

_NOTE = b"a new world "


class LetGo(BaseException):
    """A thread waits no longer for other ranks, since one is lost or all are called to another world.

    Only the thread that trains may ask what that means: by its answer it leaves this world, while others still run.

    Args:
        why: What was seen.
        ask: Takes that; raises `WorldChanged`, or what ends this world.
    """

    def __init__(self, why: str, ask: Callable[[str], NoReturn]) -> None:
        super().__init__(why)
        self.why, self._ask = why, ask

    def answer(self) -> NoReturn:
        """Ask."""
        self._ask(self.why)


class World(Protocol):
    """What is known of a new world."""

    @property
    def epoch(self) -> int:
        """Number of worlds before it."""

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of its ranks, by rank."""

    @property
    def passed(self) -> int:
        """Meetings that lie behind it."""

    @property
    def offer(self) -> str:
        """Where its memory lies."""

    @property
    def is_door(self) -> bool:
        """Whether all its ranks have come from the door, or join."""


class Speaker(Watcher, Protocol):
    """Who speaks for this rank when worlds change.

    Attributes:
        offer: Makes memory for so many ranks in the world of an epoch, and returns its address.
        interrupt: Called by another thread when all are called to another world.
    """

    offer: Callable[[int, int], str]
    interrupt: Callable[[], None]

    @property
    def number(self) -> int:
        """Return this rank's number as a member."""

    def move(self) -> World:
        """Go to the new world."""

    def up(self, epoch: int) -> None:
        """Say that this rank has met the others there."""

    def wait_at_door(self, meeting: int) -> None:
        """Wait until all are called; always raises `WorldChanged`, or what ends this world."""

    def await_call(self) -> None:
        """Return when there is another one, or a little later."""


class Carrier(Protocol):
    """What carries in one world: a board, or a group."""

    live: Watcher | None  #: Asked at its meetings whether the world has changed.
    num_meetings: int  #: How many this rank has begun, in all worlds.


Now = TypeVar("Now", bound=Carrier)


class LiveWorlds(ABC, Generic[Now]):
    """What carries between the ranks of one world after the other.

    Args:
        live: Speaks for this rank when the world changes.

    Attributes:
        world: That of now; None before the first change.
    """

    def __init__(self, live: Speaker) -> None:
        self._live = live
        self._now: Now | None = None
        self.world: World | None = None

    @property
    def is_watched(self) -> bool:
        """Whether meetings ask whether the world has changed."""
        return self._now is not None and self._now.live is not None

    @property
    def passed(self) -> int:
        """How many meetings have been begun, and passed where this rank is in none."""
        return 0 if self._now is None else self._now.num_meetings

    def look(self) -> None:
        """Between meetings: raise `WorldChanged` where the world has changed."""
        if self._live.is_called and self.is_watched:
            self._live.at(self.passed + 1)

    def watch(self, *, is_on: bool) -> None:
        """Ask at meetings whether the world has changed, from now on; or no more."""
        if self._now is not None:
            self._now.live = self._live if is_on else None

    def wait_at_door(self) -> None:
        """Between meetings: wait until all have come here, and are called; always raises, see `move`."""
        self._live.wait_at_door(self.passed + 1)

    def move(self) -> Transport:
        """Return what joins the ranks of the new world, when all of them are there.

        Raises:
            WorldChanged: One more has died meanwhile.
            PeerLost: The launcher ends this world, or its ranks cannot connect.
            OSError: The new memory cannot be reached, though whoever has made it lives.
        """
        self.world = world = self._live.move()
        found: Transport
        if len(world.members) > 1:
            found = self._join(world, world.members.index(self._live.number))
        else:
            self.close()
            if self._now is not None:
                self._now.num_meetings = world.passed
            found = LoopbackTransport()
        self._live.up(world.epoch)
        return found

    @abstractmethod
    def _join(self, world: World, rank: int) -> Transport:
        """Leave the present world, and join the others of a new one as a rank of it."""

    @abstractmethod
    def close(self) -> None:
        """Leave the present world; safe to call twice."""


Worlds = LiveWorlds[Any]
"""Of boards, or of groups."""


@final
class LiveBoards(LiveWorlds[SharedBoard]):
    """The boards of one rank, an epoch after the other; a rank that joins others begins without a board."""

    def __init__(self, board: SharedBoard | None, live: Speaker) -> None:
        super().__init__(live)
        self._first = self._now = board
        self._sizes = (SLOT_BYTES, TIMEOUT_S) if board is None else (board.slot_bytes, board.timeout_s)
        self._offered: SharedBoard | None = None
        live.offer = self._offer

    def _join(self, world: World, rank: int) -> Transport:
        old, offered, self._offered = self._now, self._offered, None
        where = rank, len(world.members), *self._sizes
        try:
            board = offered if rank == 0 and offered is not None else SharedBoard.attach(world.offer, *where)
        except OSError:  # whoever has made it is gone
            self._live.await_call()
            self._live.at(world.passed + 1)
            raise
        board.num_meetings, board.live = world.passed, self._live
        plan = None if old is None else asdict(old.plan)
        self.close()
        self._now = board
        told = [
            json.loads(note[len(_NOTE) :]) for note in board.barrier(_NOTE + json.dumps([os.getpid(), plan]).encode())
        ]
        board.watch([pid for pid, _ in told])
        board.plan = Plan(**next(plan for _, plan in told if plan is not None))  # whoever joins has none
        return ShmTransport(board, None)

    def close(self) -> None:
        """Leave the present board, unless it is the first one, which is not this object's; safe to call twice."""
        if self._now is not None and self._now is not self._first:
            self._now.close()

    def _offer(self, size: int, epoch: int) -> str:
        if self._offered is not None:
            self._offered.close()
        self._offered = None
        if size == 1:
            return ""
        self._offered, address = SharedBoard.create(size, *self._sizes, epoch)
        return address
