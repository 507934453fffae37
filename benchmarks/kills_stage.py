"""Launchers and workers that start by forking a process which has torch imported: a start costs 0.1 s, not seconds.

A real `run_local`, its real supervision and real processes, each worker a child of its launcher; only the interpreter's
start and the imports are left out. Every worker bears the name that `comm_of` gives, by which it can be found and told
from the launcher's reaper. The process that calls `start_launcher` must have one thread only.
"""

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

import unisono.train.run  # noqa: F401 - imported here once, not in every worker
from unisono.cli.output.outcome import perform
from unisono.launchers import forking
from unisono.launchers.local import run_local
from unisono.launchers.spec import LaunchSpec, ScriptTarget
from unisono.launchers.worker import child

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_MOST_DESCRIPTORS = 4096


def warm_up() -> None:
    """Have everything imported that torch imports late, at its first optimizer; starts no thread."""
    torch.use_deterministic_algorithms(True)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    threads = list(Path("/proc/self/task").iterdir())
    if len(threads) > 1:
        raise RuntimeError(f"expected one thread before forking, found {len(threads)}.")


def comm_of(stage: int) -> str:
    """Return the process name of all workers of a stage, 15 bytes at most."""
    return f"kills-{stage}"


def start_launcher(
    job: Path, args: list[str], *, workers: int, folder: Path, temporary: Path, is_forked: bool = True, **more: Any
) -> int:
    """Start a launcher of `job` in `folder`, and return its process id.

    Args:
        job: The script.
        args: Its arguments.
        workers: Processes at first.
        folder: Where it runs; what is said there goes to ``launchers.log``.
        temporary: Its directory for temporary files, new.
        is_forked: Whether workers start by forking; else they are programs of their own.
        more: Of the `LaunchSpec`.
    """
    stage = os.getpid()
    temporary.mkdir(mode=0o700)

    def launch() -> int:
        _die_with(stage)
        log = os.open(folder / "launchers.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _take_streams(os.open(os.devnull, os.O_RDONLY), log, log)
        os.environ["TMPDIR"] = str(temporary)
        tempfile.tempdir = None
        os.chdir(folder)
        if is_forked:
            os.environ[forking.FORK_VARIABLE] = "0"  # its server would load torch once more
            forking.subprocess = _Forking(stage)  # type: ignore[assignment]
        target, settings = ScriptTarget(path=str(job), args=tuple(args)), {"threads": 1, "max_restarts": 3, **more}
        spec = LaunchSpec(target=target, workers=workers, **settings)
        return perform("run", lambda: run_local(spec))

    return fork(launch)


def fork(act: Callable[[], int | None]) -> int:
    """Call `act` in a new process with a session of its own, and return its id; `act` returns its exit code."""
    pid = os.fork()
    if not pid:
        os.setsid()
        _end_with(act)
    return pid


def _end_with(act: Callable[[], int | None]) -> NoReturn:
    code = 1
    try:
        code = act() or 0
    except BaseException:  # noqa: BLE001 - nothing of the stage may run on in here
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _take_streams(*descriptors: int | None, kept: tuple[int, ...] = ()) -> None:
    """Put descriptors in the places of standard input, output and error; close everything else but those `kept`."""
    for place, descriptor in enumerate(descriptors):
        if descriptor is not None and descriptor != place:
            os.dup2(descriptor, place)
    for first, last in itertools.pairwise((2, *sorted(kept), _MOST_DESCRIPTORS)):
        os.closerange(first + 1, last)


class _Forking:
    """Stands in for `subprocess` in a launcher: its workers are forked, all else is started as always."""

    DEVNULL, PIPE = subprocess.DEVNULL, subprocess.PIPE

    def __init__(self, stage: int) -> None:
        self._name = comm_of(stage).encode()

    def Popen(self, command: list[str], **settings: Any) -> Any:
        if "unisono.launchers.worker.child" not in command:
            return subprocess.Popen(command, **settings)
        return _Forked(self._name, command, **settings)


class _Forked:
    """As much of a `Popen` as a launcher needs of its workers."""

    def __init__(self, name: bytes, command: list[str], *, env: dict[str, str], stdin: int | None,
                 stdout: int | None, stderr: int | None, start_new_session: bool,
                 pass_fds: tuple[int, ...] = ()) -> None:  # fmt: skip
        argv = command[command.index("unisono.launchers.worker.child") + 1 :]

        def work() -> int:
            ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)
            for signum in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(signum, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            source = os.open(os.devnull, os.O_RDONLY) if stdin == subprocess.DEVNULL else None
            _take_streams(source, stdout, stderr, kept=pass_fds)
            os.environ.clear()
            os.environ.update(env)
            tempfile.tempdir = None
            return child.main(argv)

        assert start_new_session
        self.pid = fork(work)

    def wait(self) -> int:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        return 0
