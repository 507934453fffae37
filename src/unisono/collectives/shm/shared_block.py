"""Memory that several processes share, semaphores in it, and waits that notice dead and stopped processes.

The memory is anonymous (``memfd_create``): it has no name in ``/dev/shm``, is not limited by that mount's size,
belongs to this user alone, and is gone with the last process that maps it, however that ends. Other processes open it
through ``/proc/PID/fd``.

POSIX makes ``sem_post`` and ``sem_wait`` synchronise memory between processes (XBD 4.12), so what was written before
a post is seen after the wait on weakly ordered machines too; no plain load or store is used to synchronise. A wait
tries briefly, then yields the core, then sleeps in the kernel in slices, and looks at the other processes in between.
Yielding is left out for a while where it has cost a time slice: another process wants the core, and gets milliseconds
of it, where a sleeper would be woken at once.
"""

import ctypes
import errno
import mmap
import os
import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from unisono.errors import WorldError
from unisono.system.disk import mend
from unisono.system.processes import look_at

SEMAPHORE_BYTES = 64
"""Room for a semaphore: ``sem_t`` takes 32; a cache line of its own."""

_NUM_TRIES = 30
_YIELD_S = 40e-6  # waking from sleep costs as much, and more on a virtual machine
_CROWDED_S = 200e-6  # a yield that nobody uses takes 1 µs; one that another process uses, its time slice of some ms
_REST_S = 0.5
_SLICE_S = 0.02

_no_yield_until = 0.0

# PyDLL keeps the interpreter's lock: for calls that return at once. CDLL gives it up: for calls that sleep.
_quick, _slow = ctypes.PyDLL(None), ctypes.CDLL(None, use_errno=True)
_post, _try_wait = _quick.sem_post, _quick.sem_trywait
_post.argtypes = _try_wait.argtypes = [ctypes.c_void_p]


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def is_supported() -> bool:
    """Whether this system has what shared memory needs: memfd, pidfd, ``/proc``, ``sem_clockwait``."""
    return all(
        (hasattr(os, "memfd_create"), hasattr(os, "pidfd_open"), Path("/proc/self/fd").is_dir(),
         hasattr(_slow, "sem_clockwait"))
    )  # fmt: skip


def make_semaphore(address: int, value: int) -> None:
    """Make a semaphore of a value in shared memory."""
    _quick.sem_init(ctypes.c_void_p(address), 1, value)


def post(address: int) -> None:
    """Raise a semaphore by one; never waits."""
    _post(address)


def value_of(address: int) -> int:
    """Return how often a semaphore can be taken without waiting."""
    value = ctypes.c_int()
    _quick.sem_getvalue(ctypes.c_void_p(address), ctypes.byref(value))
    return value.value


def take(address: int, look: Callable[[float], None]) -> None:
    """Take a semaphore, and wait for it as long as `look` lets.

    Args:
        address: Of the semaphore.
        look: Called every 20 ms of sleep with the seconds waited so far; raises to end the wait.
    """
    if comes_soon(lambda: _try_wait(address) == 0, _YIELD_S):
        return
    began = time.monotonic()
    while not _sleep_at(address):
        look(time.monotonic() - began)


def comes_soon(has_come: Callable[[], bool], within_s: float) -> bool:
    """Whether something happens within some microseconds, for which the core is kept, or yielded to who wants it."""
    global _no_yield_until
    for _ in range(_NUM_TRIES):
        if has_come():
            return True
    now = began = time.monotonic()
    while began + within_s > now >= _no_yield_until:
        os.sched_yield()
        before, now = now, time.monotonic()
        if now - before > _CROWDED_S:
            _no_yield_until = now + _REST_S
        if has_come():
            return True
    return False


def _sleep_at(address: int) -> bool:
    """Wait in the kernel for a semaphore, for a slice; whether it came."""
    end = time.monotonic() + _SLICE_S
    until = _Timespec(int(end), int(end % 1 * 1e9))
    # The monotonic clock: a jump of the wall clock must neither end nor prolong a wait (glibc 2.30).
    return bool(_slow.sem_clockwait(ctypes.c_void_p(address), time.CLOCK_MONOTONIC, ctypes.byref(until)) == 0)


@final
class SharedBlock:
    """A block of memory, and the processes that share it.

    Made in two steps, because the processes need another way to tell each other the address: one calls `create` and
    sends the address, the others call `attach`; then all exchange their process ids and call `watch`.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self.memory = mmap.mmap(descriptor, num_bytes)
        os.close(descriptor)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._offered = -1
        self._pids: list[int] = []
        self._handles: list[int] = []

    @classmethod
    def create(cls, name: str, num_bytes: int) -> tuple["SharedBlock", str]:
        """Make the memory, all zeros; returns it and its address for the other processes.

        Raises:
            WorldError: The limit on file sizes is below so many bytes.
            OSError: As the system says it.
        """
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        os.fchmod(descriptor, 0o600)
        try:
            os.ftruncate(descriptor, num_bytes)
        except OSError as error:
            os.close(descriptor)
            if error.errno != errno.EFBIG:
                raise
            raise WorldError(
                f"could not make {num_bytes:,} bytes of memory that the workers of this host share: the limit on file "
                f"sizes counts for it, too. Hint: {mend(error)}."
            ) from None
        offered = os.dup(descriptor)
        block = cls(descriptor, num_bytes)
        block._offered = offered  # stays open until the others have attached
        return block, f"/proc/{os.getpid()}/fd/{offered}"

    @classmethod
    def attach(cls, address: str, num_bytes: int) -> "SharedBlock":
        """Map the memory that another process has made.

        Raises:
            OSError: It cannot be reached: another host, user or process namespace.
        """
        return cls(os.open(address, os.O_RDWR | os.O_CLOEXEC), num_bytes)

    def watch(self, pids: Sequence[int]) -> None:
        """Take the process ids of all ranks, to notice when one ends."""
        if self._offered >= 0:
            os.close(self._offered)
            self._offered = -1
        self._pids = list(pids)
        # A pid would not do: the launcher leaves ended workers as zombies until the end.
        self._handles = [os.pidfd_open(pid) for pid in pids]

    def dead(self) -> list[int]:
        """Return the ranks whose processes have ended."""
        ready = set(select.select(self._handles, [], [], 0)[0]) if self._handles else set()
        return [rank for rank, handle in enumerate(self._handles) if handle in ready]

    def stopped(self) -> list[int]:
        """Return the ranks whose processes a signal or a debugger has stopped (states T and t of proc(5))."""
        return [rank for rank, pid in enumerate(self._pids) if look_at(pid).state in ("T", "t")]

    def names(self, ranks: Sequence[int], first: int = 0) -> str:
        """Return ranks in words, counted from `first`: ``ranks 1 (process 77) and 2 (process 78)``."""
        *most, last = (f"{first + r} (process {self._pids[r]})" if self._pids else str(first + r) for r in ranks)
        return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"

    def close(self) -> None:
        """Stop watching; the memory goes with the last tensor that looks at it."""
        for descriptor in (*self._handles, *([self._offered] if self._offered >= 0 else [])):
            os.close(descriptor)
        self._handles, self._offered = [], -1
