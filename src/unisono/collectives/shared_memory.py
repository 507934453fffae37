"""Shared memory between the processes of one host, with barriers that notice the dead.

The memory is anonymous (``memfd_create``): it has no name in ``/dev/shm``, is not limited by that mount's size,
belongs to this user alone, and is gone with the last process that maps it, however that ends. Other ranks open it
through ``/proc/PID/fd``.

Ranks meet at POSIX semaphores inside the memory. POSIX makes ``sem_post`` and ``sem_wait`` synchronise memory between
processes (XBD 4.12), so what was written before a barrier is seen after it on weakly ordered machines too; no
plain load or store is used to synchronise. A wait tries briefly, then yields the core, then sleeps in the kernel in
slices; between slices it looks whether the peers still live.
"""

import ctypes
import mmap
import os
import select
import struct
import time
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from unisono.collectives.tuning import Plan, default_plan
from unisono.errors import PeerLost

_SEMAPHORE_BYTES = 64  # sem_t takes 32; a cache line of its own
_NOTE_BYTES = 192
_NUM_TRIES = 30
_NUM_YIELDS = 20
_SLICE_S = 0.02

# PyDLL keeps the interpreter's lock: for calls that return at once. CDLL gives it up: for calls that sleep.
_quick, _slow = ctypes.PyDLL(None), ctypes.CDLL(None, use_errno=True)
_post, _try_wait = _quick.sem_post, _quick.sem_trywait
_post.argtypes = _try_wait.argtypes = [ctypes.c_void_p]


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _sleep_at(semaphore: int, seconds: float) -> bool:
    """Wait in the kernel for a semaphore; whether it came."""
    end = time.monotonic() + seconds
    until = _Timespec(int(end), int(end % 1 * 1e9))
    # The monotonic clock: a jump of the wall clock must neither end nor prolong a wait (glibc 2.30).
    return bool(_slow.sem_clockwait(ctypes.c_void_p(semaphore), time.CLOCK_MONOTONIC, ctypes.byref(until)) == 0)


def is_supported() -> bool:
    """Whether this system has what shared memory needs: memfd, pidfd, ``/proc``, ``sem_clockwait``."""
    return all(
        (hasattr(os, "memfd_create"), hasattr(os, "pidfd_open"), Path("/proc/self/fd").is_dir(),
         hasattr(_slow, "sem_clockwait"))
    )  # fmt: skip


@final
class SharedBoard:
    """Where ranks leave buffers for each other: for each rank two slots and two result areas, used in turn.

    Made in two steps, because the ranks need another way to tell each other the address: rank 0 calls `create` and
    sends its `address`, the others call `attach`; then all exchange their process ids and call `watch`.

    Args:
        descriptor: The memory's file descriptor; closed here.
        rank: This rank.
        world_size: Number of ranks.
        slot_bytes: Size of each slot and result area; a multiple of 64.
        timeout_s: Longest wait for a rank that lives.
    """

    def __init__(self, descriptor: int, rank: int, world_size: int, slot_bytes: int, timeout_s: float) -> None:
        self.rank, self.world_size, self.slot_bytes, self.timeout_s = rank, world_size, slot_bytes, timeout_s
        self._memory = mmap.mmap(descriptor, _total_bytes(world_size, slot_bytes))
        os.close(descriptor)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._rounds = (world_size - 1).bit_length()
        head = _head_bytes(world_size)
        everything = torch.frombuffer(self._memory, dtype=torch.uint8)
        # (parity, rank, slot or result, bytes)
        areas = everything[head:].view(2, world_size, 2, slot_bytes)
        self._slots = [[areas[parity, rank, 0] for rank in range(world_size)] for parity in range(2)]
        self._results = [[areas[parity, rank, 1] for rank in range(world_size)] for parity in range(2)]
        self._peers: list[int] = []
        self._pids: list[int] = []
        self._offered = -1
        self.num_barriers = 0
        self.plan: Plan = default_plan(world_size)

    @classmethod
    def create(cls, world_size: int, slot_bytes: int, timeout_s: float) -> tuple["SharedBoard", str]:
        """Make the memory; returns rank 0's board and the address for the other ranks."""
        descriptor = os.memfd_create("unisono", os.MFD_CLOEXEC)
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, _total_bytes(world_size, slot_bytes))
        offered = os.dup(descriptor)
        board = cls(descriptor, 0, world_size, slot_bytes, timeout_s)
        board._offered = offered  # stays open until the others have attached
        for index in range(board._rounds * world_size):
            _quick.sem_init(ctypes.c_void_p(board._base + index * _SEMAPHORE_BYTES), 1, 0)
        return board, f"/proc/{os.getpid()}/fd/{offered}"

    @classmethod
    def attach(cls, address: str, rank: int, world_size: int, slot_bytes: int, timeout_s: float) -> "SharedBoard":
        """Map the memory that rank 0 has made.

        Raises:
            OSError: It cannot be reached: another host, user or process namespace.
        """
        return cls(os.open(address, os.O_RDWR | os.O_CLOEXEC), rank, world_size, slot_bytes, timeout_s)

    def watch(self, pids: list[int]) -> None:
        """Take the process ids of all ranks, to notice when one ends."""
        if self._offered >= 0:
            os.close(self._offered)
            self._offered = -1
        self._pids = pids
        self._peers = [os.pidfd_open(pid) for pid in pids]

    def slot(self, rank: int, parity: int) -> Tensor:
        """Return a rank's slot, uint8 (slot_bytes,): written by that rank alone."""
        return self._slots[parity][rank]

    def result(self, rank: int, parity: int) -> Tensor:
        """Return a rank's result area, uint8 (slot_bytes,): written by that rank alone."""
        return self._results[parity][rank]

    def barrier(self, note: bytes) -> list[bytes]:
        """Return on no rank before all have called; what was written before is seen after.

        Log2(ranks) rounds of one semaphore each (dissemination barrier: Hensgen, Finkel and Manber, 1988).

        Args:
            note: What this rank is doing, at most 180 bytes.

        Returns:
            The notes of all ranks.

        Raises:
            PeerLost: A rank has died, or has not come within the timeout; names it.
        """
        parity = self.num_barriers % 2
        self.num_barriers += 1
        start = self._note_offset(self.rank, parity)
        # Calls begun, calls finished, length, text.
        self._memory[start : start + 12 + len(note)] = struct.pack("<IIHxx", self.num_barriers, 0, len(note)) + note
        for number in range(self._rounds):
            row = self._base + number * self.world_size * _SEMAPHORE_BYTES
            _post(row + (self.rank + (1 << number)) % self.world_size * _SEMAPHORE_BYTES)
            self._wait(row + self.rank * _SEMAPHORE_BYTES)
        struct.pack_into("<I", self._memory, start + 4, self.num_barriers)
        return [self._note(rank, parity)[2] for rank in range(self.world_size)]

    def close(self) -> None:
        """Stop watching; the memory goes with the last tensor that looks at it."""
        for descriptor in (*self._peers, *([self._offered] if self._offered >= 0 else [])):
            os.close(descriptor)
        self._peers, self._offered = [], -1

    def _wait(self, semaphore: int) -> None:
        for _ in range(_NUM_TRIES):
            if _try_wait(semaphore) == 0:
                return
        for _ in range(_NUM_YIELDS):
            os.sched_yield()
            if _try_wait(semaphore) == 0:
                return
        deadline = time.monotonic() + self.timeout_s
        while not _sleep_at(semaphore, _SLICE_S):
            # A rank that has finished this meeting may end: the others still have to pass it on.
            dead = [
                rank
                for rank, peer in enumerate(self._peers)
                if select.select([peer], [], [], 0)[0] and self._progress(rank)[1] < self.num_barriers
            ]
            if dead:
                raise PeerLost(self._complain(f"rank {dead[0]} (process {self._pids[dead[0]]}) has died", dead))
            if time.monotonic() > deadline:
                late = self._late()
                raise PeerLost(
                    self._complain(
                        f"rank {', '.join(map(str, late)) or '?'} has not come within {self.timeout_s:g} s", late
                    )
                )

    def _late(self) -> list[int]:
        """Return the ranks that have begun fewer barriers than this one."""
        return [rank for rank in range(self.world_size) if self._progress(rank)[0] < self.num_barriers]

    def _progress(self, rank: int) -> tuple[int, int]:
        """Return how many barriers a rank has begun and finished."""
        notes = [self._note(rank, parity) for parity in range(2)]
        return max(note[0] for note in notes), max(note[1] for note in notes)

    def _complain(self, what: str, ranks: list[int]) -> str:
        doing = self._note(self.rank, (self.num_barriers - 1) % 2)[2].decode(errors="replace")
        hint = "Hint: look for the first failure in its log." if ranks else "Hint: do all ranks run the same code?"
        return f"[rank {self.rank}/{self.world_size}] {what} (waiting in {doing}, meeting {self.num_barriers}). {hint}"

    def _note_offset(self, rank: int, parity: int) -> int:
        return self._rounds * self.world_size * _SEMAPHORE_BYTES + (2 * rank + parity) * _NOTE_BYTES

    def _note(self, rank: int, parity: int) -> tuple[int, int, bytes]:
        start = self._note_offset(rank, parity)
        begun, finished, length = struct.unpack_from("<IIH", self._memory, start)
        return begun, finished, self._memory[start + 12 : start + 12 + length]


def _head_bytes(world_size: int) -> int:
    rounds = (world_size - 1).bit_length()
    used = rounds * world_size * _SEMAPHORE_BYTES + 2 * world_size * _NOTE_BYTES
    return -(-used // mmap.PAGESIZE) * mmap.PAGESIZE


def _total_bytes(world_size: int, slot_bytes: int) -> int:
    return _head_bytes(world_size) + 4 * world_size * slot_bytes
