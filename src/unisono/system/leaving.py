"""What a worker leaves when it ends: no process group of gloo outlives the interpreter.

Torch 2.13 ends a process that still has one by "terminate called without an active exception" (SIGABRT) whenever
gloo's threads are at work at that moment: measured in every second program whose rank left while others still reduced.
A group that somebody still holds (as a DistributedDataParallel does) is not destroyed by `destroy_process_group`; its
threads may still have to let go of their last tensors, which takes the interpreter's lock. So they are waited for.
Must not import torch: a worker may never need it.
"""

import atexit
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST_S = 5.0
SLICE_S = 0.002

_first: list[weakref.WeakMethod[Callable[[], None]]] = []


def leave_groups_at_exit() -> None:
    """Destroy the process groups that are left when the interpreter ends; calling it again changes nothing."""
    atexit.unregister(_leave_groups)
    atexit.register(_leave_groups)


def leave_before_groups(leave: Callable[[], None]) -> None:
    """Call a method when the interpreter ends, before the groups are destroyed, if its object still lives."""
    _first.append(weakref.WeakMethod(leave))


def _leave_groups() -> None:
    for found in _first:
        if (leave := found()) is not None:
            leave()
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    if distributed.is_initialized():
        leave_group(distributed)
    await_gloo()  # also where the program has destroyed its group: it may hold it still


def leave_group(distributed: Any) -> None:
    """Destroy the default group: gloo's, alone or beside NCCL's, which is ended by itself rather than together.

    Of a group of both, `get_backend` names both: ``cpu:gloo,cuda:nccl``.
    """
    backend = distributed.get_backend()
    if "gloo" not in backend:
        return  # nccl's end together or not at all
    if "nccl" in backend and hasattr(distributed.distributed_c10d, "_abort_process_group"):
        distributed.distributed_c10d._abort_process_group()
    else:
        distributed.destroy_process_group()


def await_gloo() -> None:
    """Wait until gloo's threads sleep, at most `LONGEST_S`: they have been asleep while this one let them run."""
    before, end = None, time.monotonic() + LONGEST_S
    while (now := _gloo_threads()) and time.monotonic() < end:
        if now == before and all(state == "S" for state, _ in now.values()):
            break
        before = now
        time.sleep(SLICE_S)


def _gloo_threads() -> dict[str, tuple[str, str]]:
    """Return the state of each of gloo's working threads, and how often it has gone to sleep."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        try:
            if (thread / "comm").read_text() == "pt_gloo_runloop\n":
                lines = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
                found[thread.name] = (lines["State"].strip()[0], lines["voluntary_ctxt_switches"])
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
    return found
