"""The board: shared memory where the ranks of one host leave buffers for each other, and meet.

`shared_block` says how the memory is made and how ranks wait; here is where things lie in it, the barrier, and the
words for ranks that do not come.
"""

import mmap
import struct
from typing import Protocol, final

import torch
from torch import Tensor

from unisono.collectives.divergence import divergence
from unisono.collectives.shm.shared_block import SEMAPHORE_BYTES, SharedBlock, make_semaphore, post, take
from unisono.collectives.shm.tuning import Plan, default_plan
from unisono.errors import PeerLost

NOTE_BYTES = 180
"""Longest note of a meeting."""

_NOTE_ROOM = 192
_HEAD = struct.Struct("<IIHB")  # meetings begun, meetings finished, length of the text that follows, has given up
_GIVEN_UP = struct.Struct("<B")
_FINISHED = struct.Struct("<I")


class Watcher(Protocol):
    """Whom a rank asks, at its meetings, whether the world has changed; `launchers.worker.live_member` has one."""

    @property
    def is_called(self) -> bool:
        """Whether it has; looked at before every meeting."""

    def at(self, meeting: int) -> bool:
        """Return whether a meeting is over without this rank, False to go on; raise where it will not take place."""

    def is_word_due(self) -> bool:
        """Whether somebody else decides about a peer that is seen dead."""


class _OthersHavePassed(Exception):
    """A meeting is over, though this rank has not been woken."""


@final
class SharedBoard:
    """Where ranks leave buffers for each other: for each rank two slots and two result areas, used in turn.

    Made in two steps, because the ranks need another way to tell each other the address: rank 0 calls `create` and
    sends its `address`, the others call `attach`; then all exchange their process ids and call `watch`.

    Args:
        block: The memory; closed with the board.
        rank: This rank.
        world_size: Number of ranks.
        slot_bytes: Size of each slot and result area; a multiple of 64.
        timeout_s: Longest wait for a rank that lives.

    Attributes:
        pids: Process ids of all ranks, once they are watched.
        live: Asked at every meeting whether the world has changed, where ranks may go on without one that has died.
        first_rank: What rank 0 of the board is called in messages, where the board joins some ranks of a world.
        num_ranks: Number of ranks of that world.
        num_meetings: Meetings that this rank has begun; counted through all boards of a world that loses ranks.
        plan: How reductions are cut.
        kept: What reductions of one shape would compute again and again.
    """

    def __init__(self, block: SharedBlock, rank: int, world_size: int, slot_bytes: int, timeout_s: float) -> None:
        self.rank, self.world_size, self.slot_bytes, self.timeout_s = rank, world_size, slot_bytes, timeout_s
        self._block, self._memory = block, block.memory
        self._rounds = (world_size - 1).bit_length()
        head = _head_bytes(world_size)
        everything = torch.frombuffer(block.memory, dtype=torch.uint8)
        # By parity, rank, slot or result, byte.
        areas = everything[head:].view(2, world_size, 2, slot_bytes)
        self._slots = [[areas[parity, rank, 0] for rank in range(world_size)] for parity in range(2)]
        self._results = [[areas[parity, rank, 1] for rank in range(world_size)] for parity in range(2)]
        self._typed: dict[tuple[torch.dtype, bool], list[list[Tensor]]] = {}
        rows = [block.base + number * world_size * SEMAPHORE_BYTES for number in range(self._rounds)]
        #: The semaphores of each round of a meeting: the one that this rank raises, and the one that it takes.
        self._semaphores = [
            (row + (rank + (1 << number)) % world_size * SEMAPHORE_BYTES, row + rank * SEMAPHORE_BYTES)
            for number, row in enumerate(rows)
        ]
        self._offsets = [[self._note_offset(r, parity) for r in range(world_size)] for parity in range(2)]
        self.first_rank, self.num_ranks = 0, world_size
        self.kept: dict[object, object] = {}
        self.num_meetings = 0
        self.pids: list[int] = []
        self.live: Watcher | None = None
        self.plan: Plan = default_plan(world_size)

    @classmethod
    def create(cls, world_size: int, slot_bytes: int, timeout_s: float, epoch: int = 0) -> tuple["SharedBoard", str]:
        """Make the memory, named by the membership's epoch; returns rank 0's board and the address for the others."""
        name = f"unisono-e{epoch}" if epoch else "unisono"
        block, address = SharedBlock.create(name, _total_bytes(world_size, slot_bytes))
        board = cls(block, 0, world_size, slot_bytes, timeout_s)
        for index in range(board._rounds * world_size):
            make_semaphore(block.base + index * SEMAPHORE_BYTES, 0)
        return board, address

    @classmethod
    def attach(cls, address: str, rank: int, world_size: int, slot_bytes: int, timeout_s: float) -> "SharedBoard":
        """Map the memory that rank 0 has made."""
        block = SharedBlock.attach(address, _total_bytes(world_size, slot_bytes))
        return cls(block, rank, world_size, slot_bytes, timeout_s)

    def watch(self, pids: list[int]) -> None:
        """Take the process ids of all ranks, to notice when one ends."""
        self.pids = pids
        self._block.watch(pids)

    def slot(self, rank: int, parity: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Return a rank's slot, (slot_bytes / itemsize,): written by that rank alone."""
        return self._areas(dtype, is_result=False)[parity][rank]

    def result(self, rank: int, parity: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Return a rank's result area, (slot_bytes / itemsize,): written by that rank alone."""
        return self._areas(dtype, is_result=True)[parity][rank]

    def _areas(self, dtype: torch.dtype, *, is_result: bool) -> list[list[Tensor]]:
        """Return the areas by parity and rank; made once for each dtype."""
        found = self._typed.get((dtype, is_result))
        if found is None:
            areas = self._results if is_result else self._slots
            found = [[area.view(dtype) for area in of_parity] for of_parity in areas]
            self._typed[dtype, is_result] = found
        return found

    def barrier(self, note: bytes) -> list[bytes]:
        """Return on no rank before all have called; what was written before is seen after.

        Log2(ranks) rounds of one semaphore each (dissemination barrier: Hensgen, Finkel and Manber, 1988).

        Args:
            note: What this rank is doing, at most `NOTE_BYTES`.

        Returns:
            The notes of all ranks.

        Raises:
            PeerLost: A rank has died, or has not come within the timeout; names it.
            WorldChanged: It will not take place, the ranks go on in another world; only where there is a `live`.
        """
        if self.live is not None and self.live.is_called:
            self.live.at(self.num_meetings + 1)
        parity = self.num_meetings % 2
        self.num_meetings += 1
        memory, offsets = self._memory, self._offsets[parity]
        start, size = offsets[self.rank], _HEAD.size + len(note)
        told = _HEAD.pack(self.num_meetings, 0, len(note), 0) + note
        memory[start : start + size] = told
        try:
            for theirs, mine in self._semaphores:
                post(theirs)
                take(mine, self._look)
        except _OthersHavePassed:
            pass
        _FINISHED.pack_into(memory, start + 4, self.num_meetings)
        told = told[8:]
        for offset in offsets:
            if memory[offset + 8 : offset + size] != told:
                return [self._note(rank, parity)[2] for rank in range(self.world_size)]
        return [note] * self.world_size

    def meet(self, note: str) -> None:
        """Wait for all ranks, and check that they are doing the same.

        Raises:
            PeerLost: A rank has died or has not come in time.
            RankDivergence: Ranks are doing different things; raised on all of them.
        """  # noqa: DOC501 - a function makes the error
        notes = self.barrier(note.encode()[:NOTE_BYTES])
        if notes.count(notes[0]) != self.world_size:
            told = [other.decode(errors="replace") for other in notes]
            raise divergence(self.title, self.first_rank, told, f"in meeting {self.num_meetings}")

    def close(self) -> None:
        """Stop watching; the memory goes with the last tensor that looks at it."""
        self._block.close()

    @property
    def title(self) -> str:
        """Return who speaks, for messages."""
        return f"[rank {self.first_rank + self.rank}/{self.num_ranks}]"

    def _names(self, ranks: list[int]) -> str:
        return self._block.names(ranks, self.first_rank)

    def _look(self, waited_s: float) -> None:
        """Give up the meeting when a rank is lost: say who, here and to the ranks that wait for this one."""
        if self.live is not None and self.live.is_called and self.live.at(self.num_meetings):
            raise _OthersHavePassed  # so all have begun it: what they have laid down is there
        # A rank that has finished this meeting may end: the others still have to pass it on.
        dead = [rank for rank in self._block.dead() if self._progress(rank)[1] < self.num_meetings]
        if not dead and waited_s < self.timeout_s:
            return
        if dead and self.live is not None and self.live.is_word_due():
            return
        # One that ended because it had lost another is not whom to look for.
        given_up = [any(self._memory[offset[rank] + _HEAD.size - 1] for offset in self._offsets) for rank in dead]
        first = [rank for rank, has in zip(dead, given_up, strict=True) if not has]
        stopped = [] if first else [rank for rank in self._block.stopped() if rank != self.rank]
        late = f"come within {self.timeout_s:g} s"
        hint = "Hint: look for the first failure in its log."
        if not first and stopped:
            what = f"{self._names(stopped)}, stopped by a signal or a debugger, {_have(stopped)} not {late}"
            hint = f"Hint: kill -CONT lets a process go on; find out who stopped it (timeout_s is {self.timeout_s:g})."
        elif dead:
            what = f"{self._names(first or dead)} {_have(first or dead)} died"
        elif behind := self._behind():
            what = f"{self._names(behind)} {_have(behind)} not {late}"
        else:
            what, hint = f"the ranks have not all {late}", "Hint: look at what each of them does, as with py-spy."
        start = self._note_offset(self.rank, (self.num_meetings - 1) % 2)
        _GIVEN_UP.pack_into(self._memory, start + _HEAD.size - 1, 1)
        doing = self._note(self.rank, (self.num_meetings - 1) % 2)[2].decode(errors="replace")
        raise PeerLost(f"{self.title} {what} (waiting in {doing}, meeting {self.num_meetings}). {hint}")

    def _behind(self) -> list[int]:
        """Return the ranks that have begun the fewest meetings, if fewer than this one."""
        begun = [self._progress(rank)[0] for rank in range(self.world_size)]
        return [rank for rank, number in enumerate(begun) if number == min(begun) < self.num_meetings]

    def _progress(self, rank: int) -> tuple[int, int]:
        """Return how many meetings a rank has begun and finished."""
        notes = [self._note(rank, parity) for parity in range(2)]
        return max(note[0] for note in notes), max(note[1] for note in notes)

    def _note_offset(self, rank: int, parity: int) -> int:
        return self._rounds * self.world_size * SEMAPHORE_BYTES + (2 * rank + parity) * _NOTE_ROOM

    def _note(self, rank: int, parity: int) -> tuple[int, int, bytes]:
        start = self._note_offset(rank, parity)
        begun, finished, length, _ = _HEAD.unpack_from(self._memory, start)
        return begun, finished, self._memory[start + _HEAD.size : start + _HEAD.size + length]


def as_bytes(flat: Tensor) -> Tensor:
    """Return a contiguous one-dimensional tensor as uint8, over the same memory."""
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


def _have(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _head_bytes(world_size: int) -> int:
    rounds = (world_size - 1).bit_length()
    used = rounds * world_size * SEMAPHORE_BYTES + 2 * world_size * _NOTE_ROOM
    return -(-used // mmap.PAGESIZE) * mmap.PAGESIZE


def _total_bytes(world_size: int, slot_bytes: int) -> int:
    return _head_bytes(world_size) + 4 * world_size * slot_bytes
