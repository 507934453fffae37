"""A process that has loaded torch once, and from which the workers of a launch are forked; `launchers/forking.py` asks.

In: ``fork_server LAUNCHER_PID DESCRIPTOR MODULES PROGRAM...``, which ``ps`` shows of its workers, too; then, over a
socket, one request for each worker. Out: the worker's process id, or why there is none. A worker is forked twice, so
that it becomes the launcher's own child: that one sees its end as it sees the end of any other, also when this process
is gone. Imports torch only where it is told to.
"""

import gc
import importlib
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from unisono.launchers.worker import child
from unisono.launchers.worker.environment import JOINS_VARIABLE
from unisono.system.processes import die_with_parent

REQUEST_BYTES = 100_000
"""Longest request; the kernel's own limit for a message is twice that."""
MOST_DESCRIPTORS = 8
NAME = "unisono-forks"
"""How ``ps`` and ``top`` call it; a worker is called unisono-rank0."""


def serve(argv: list[str]) -> list[str] | None:
    """Answer requests until the launcher ends; in a worker, return what `child.main` is to be called with.

    Raises:
        ImportError: A module cannot be loaded; the launcher starts each worker by itself then, which shows it.
    """
    parent, descriptor, modules, *_ = argv
    die_with_parent(int(parent))
    _call_itself(NAME)
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    for name in modules.split(","):
        importlib.import_module(name)
    if _has_threads():  # OpenBLAS ends its own when it forks, and starts them again where they are needed
        if not (trial := os.fork()):
            os._exit(0)
        _await(trial)
    if _has_threads():  # a lock that one of them holds would stay locked in a worker
        _answer(control, error="threads run in it")
        return None
    gc.collect()
    gc.freeze()  # the collector would write to every object, and so copy all pages for each worker
    _answer(control, is_ready=True)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, MOST_DESCRIPTORS)
        if not message:
            return None
        request = json.loads(message)
        if _fork(control, descriptors):
            control.close()
            return _become(request, descriptors)
        for each in descriptors:
            os.close(each)


def _await(pid: int) -> None:
    with suppress(ChildProcessError):  # the launcher ignores SIGCHLD, and so do we: it has ended all the same
        os.waitpid(pid, 0)


def _has_threads() -> bool:
    return len(os.listdir("/proc/self/task")) > 1  # noqa: PTH208


def _call_itself(name: str) -> None:
    Path("/proc/self/comm").write_text(name)  # the first 15 letters count


def _answer(control: socket.socket, **answer: Any) -> None:
    with suppress(BrokenPipeError):  # the launcher ends, and this process with it
        control.send(json.dumps(answer).encode())


def _fork(control: socket.socket, descriptors: list[int]) -> bool:
    """Fork a worker, and answer; whether this process is the worker."""
    told, tell = os.pipe()
    begins, begin = os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        _answer(control, error=str(error))
        between = -1
    if between == 0:
        try:
            worker = os.fork()
        except OSError as error:
            os.write(tell, str(error).encode())
            os._exit(1)
        if worker:
            os.write(tell, b"%d" % worker)
            os._exit(0)
        for each in (told, tell, begin):
            os.close(each)
        if not os.read(begins, 1):  # the server has ended: nobody knows of this one
            os._exit(1)
        os.close(begins)
        return True
    os.close(tell)
    if between > 0:
        _await(between)  # from here on the worker is the launcher's child
        found = os.read(told, 1000).decode()
        if found.isdecimal():
            os.write(begin, b"!")
            _answer(control, pid=int(found))
        else:
            _answer(control, error=found)
    for each in (told, begins, begin):
        os.close(each)
    return False


def _become(request: dict[str, Any], descriptors: list[int]) -> list[str]:
    """Be a process as one that was started for this request alone."""
    os.setsid()
    for place, each in enumerate(descriptors[:3]):
        os.dup2(each, place)
        os.close(each)
    for name in request["unset"]:
        os.environ.pop(name, None)
    passed = {name: str(each) for name, each in zip(request["passed"], descriptors[3:], strict=True)}
    os.environ.update(request["set"] | passed)
    _call_itself(f"unisono-rank{os.environ.get(JOINS_VARIABLE) or os.environ['RANK']}")
    # Python's own generator draws a new seed in a child; numpy's would draw the same numbers in all workers.
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    argv: list[str] = request["argv"]
    return argv


if __name__ == "__main__":
    _self = sys.modules["__main__"]  # the user's program takes this name; these functions must live on
    _argv = serve(sys.argv[1:])
    sys.exit(0 if _argv is None else child.main(_argv))
