"""Processes as the kernel shows them: state, start, end with the parent; which machine it is (no torch)."""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_adopts = threading.Lock()


class Process(NamedTuple):
    """What ``/proc/PID/stat`` says about a process; see proc(5)."""

    state: str = ""  #: The kernel's letter: R, S, D, T (stopped), t (traced), Z; empty where there is no such process.
    #: When it started, in clock ticks since boot: tells it from a later one of its number; -1 where it does not run (a
    #: zombie does not).
    start_ticks: int = -1


def look_at(pid: int) -> Process:
    """Return what is known about a process, also when there is none of this number."""
    try:
        # The name before these fields is in brackets and may hold anything, brackets too.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return Process()
    return Process(fields[0], -1 if fields[0] in "ZX" else int(fields[19]))


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends, however it ends.

    Args:
        parent: Its process id: where that has ended before the kernel was asked, this process ends now; None: any.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def adopting() -> Iterator[bool]:
    """Become the parent of descendants whose own parent ends in this block; whether the kernel can do that.

    Source: prctl(2), PR_SET_CHILD_SUBREAPER.
    """
    with _adopts:  # it is the whole process's
        prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
        is_known = prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) == 0
        can = is_known and prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        try:
            yield can
        finally:
            if can:
                prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def boot_id() -> str:
    """Return what changes with every start of this machine; empty where the system tells none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # not Linux
        return ""


def name_of_this_host() -> str:
    """Return what is the same for all processes that can share memory, and different on other machines."""
    return f"{socket.gethostname()} {boot_id() or os.uname().nodename}"
