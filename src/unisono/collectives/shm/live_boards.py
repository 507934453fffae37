"""The shared memory of a world that has lost a rank: a new board for those that are left, with no other way to meet.

The first of them makes the memory before it says that it is ready, and the launcher tells the others where it lies.
Nothing of an old board is used again: a rank that was lost may still write there until it is gone.
"""

from collections.abc import Callable
from typing import Protocol, final

from unisono.collectives.loopback import LoopbackTransport
from unisono.collectives.shm.board import SharedBoard, Watcher
from unisono.collectives.shm.transport import ShmTransport
from unisono.collectives.transport import Transport


class World(Protocol):
    """What is known of a new world."""

    @property
    def epoch(self) -> int:
        """Number of worlds before it."""

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of its ranks, ascending."""

    @property
    def passed(self) -> int:
        """Meetings that lie behind it."""

    @property
    def offer(self) -> str:
        """Where its memory lies."""


class Speaker(Watcher, Protocol):
    """Who speaks for this rank when worlds change.

    Attributes:
        offer: Makes memory for so many ranks in the world of an epoch, and returns its address.
    """

    offer: Callable[[int, int], str]

    @property
    def number(self) -> int:
        """Return this rank's number as a member."""

    def move(self) -> World:
        """Go to the new world."""

    def up(self, epoch: int) -> None:
        """Say that this rank has met the others there."""

    def await_call(self) -> None:
        """Return when there is another one, or a little later."""


@final
class LiveBoards:
    """The boards of one rank, an epoch after the other.

    Args:
        board: The first one, at which every member's rank is its number.
        live: Says what has become of the world.
    """

    def __init__(self, board: SharedBoard, live: Speaker) -> None:
        self._first = self._board = board
        self._live, self._pids = live, board.pids
        self._offered: SharedBoard | None = None
        live.offer = self._offer

    def watch(self, *, is_on: bool) -> None:
        """Ask at meetings whether the world has changed, from now on; or no more."""
        self._board.live = self._live if is_on else None

    def move(self) -> Transport:
        """Return what joins the ranks of the new world, when all of them are there.

        Raises:
            WorldChanged: One more has died meanwhile.
            PeerLost: The launcher ends this world.
            OSError: The new memory cannot be reached, though whoever has made it lives.
        """
        old, world = self._board, self._live.move()
        offered, self._offered = self._offered, None
        if len(world.members) == 1:
            self.close()
            self._live.up(world.epoch)
            return LoopbackTransport()
        rank = world.members.index(self._live.number)
        where = rank, len(world.members), old.slot_bytes, old.timeout_s
        try:
            board = offered if rank == 0 and offered is not None else SharedBoard.attach(world.offer, *where)
        except OSError:  # whoever has made it is gone
            self._live.await_call()
            self._live.at(world.passed + 1)
            raise
        board.num_barriers, board.plan, board.live = world.passed, old.plan, self._live
        self.close()
        self._board = board
        board.barrier(b"a new world")
        board.watch([self._pids[member] for member in world.members])
        self._live.up(world.epoch)
        return ShmTransport(board, None)

    def close(self) -> None:
        """Leave the present board, unless it is the first one, which is not this object's; safe to call twice."""
        if self._board is not self._first:
            self._board.close()

    def _offer(self, size: int, epoch: int) -> str:
        if self._offered is not None:
            self._offered.close()
        self._offered = None
        if size == 1:
            return ""
        self._offered, address = SharedBoard.create(size, self._board.slot_bytes, self._board.timeout_s, epoch)
        return address
