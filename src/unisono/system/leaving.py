"""What a worker leaves when it ends: no process group of gloo outlives the interpreter.

Torch 2.13 ends a process that still has one by "terminate called without an active exception" (SIGABRT) whenever
gloo's threads are at work at that moment: measured in every second program whose rank left while others still reduced.
Must not import torch: a worker may never need it.
"""

import atexit
import sys
import weakref
from collections.abc import Callable
from typing import Any

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
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_backend() == "gloo":  # nccl's groups end together or not at all
        distributed.destroy_process_group()
