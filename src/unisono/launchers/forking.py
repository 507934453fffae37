"""Start workers by forking them from a process that has loaded torch; `worker/fork_server.py` is that process.

Loading torch takes a worker 1 to 3 s of a core and 160 MB. So it is done once for a launch: for all its workers, those
that start again, and those that join later. Only on Linux, and where no GPU is in sight: a process that has asked CUDA
for devices cannot be forked. Must not import torch.
"""

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, final

from unisono.launchers.program_files import what_it_loads
from unisono.launchers.scratch import interrupts_held_back
from unisono.launchers.spec import FunctionTarget, LaunchSpec, ScriptTarget
from unisono.launchers.worker.environment import worker_environment
from unisono.launchers.worker.fork_server import REQUEST_BYTES
from unisono.system.machine import find_gpus
from unisono.system.processes import adopting

FORK_VARIABLE = "UNISONO_FORK"
"""0: start each worker as a new process that loads torch itself."""
_LOOK_S, _ANSWER_S = 0.25, 10.0
_OWN = ("torch", "unisono.train.run")
# What a worker is told of itself, and what torch does not look at while it is loaded.
_PER_WORKER = ("RANK", "LOCAL_", "ROLE_", "WORLD_SIZE", "GROUP_", "MASTER_", "TORCHELASTIC_", "UNISONO_",
               "GLOO_SOCKET", "NCCL_SOCKET")  # fmt: skip


class Worker(Protocol):
    """A started process, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def wait(self) -> int:
        """Reap it, and return its exit code; it has ended, or will."""


@final
@dataclass(frozen=True, slots=True)
class Forked:
    """A worker that was forked, and is our child."""

    pid: int

    def wait(self) -> int:
        """Reap it, and return its exit code."""
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # the program ignores SIGCHLD: the kernel has reaped it
            return 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The server can fork workers, or never will."""


def modules_for(spec: LaunchSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a server loads for this launch; nothing where workers are started without one."""
    is_one = spec.workers + spec.spares == 1 and not spec.max_restarts
    if is_one or sys.platform != "linux" or environ.get(FORK_VARIABLE) == "0":
        return ()
    if spec.backend:  # it takes part in the import of torch
        return ()
    if spec.devices or (spec.devices is None and find_gpus({**environ, **spec.env})):
        return ()
    target = spec.target
    if isinstance(target, FunctionTarget):
        if target.module.startswith("unisono."):
            return *_OWN, target.module
        return tuple(name for name in _OWN if name in sys.modules)
    if isinstance(target, ScriptTarget):
        named = what_it_loads(target.path, worker_environment(spec, spec.ranks.start, "", 0, environ))
        return _OWN if "unisono" in named else tuple(named)
    return ()


@final
class ForkServer:
    """The process from which the workers of a launch are forked; it loads torch from now on.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, modules: Sequence[str], environment: Mapping[str, str], program: Sequence[str] = (), *,
        is_quiet: bool = False,
    ) -> None:  # fmt: skip
        self._environment, self._is_quiet = dict(environment), is_quiet
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._is_heard, self._is_ready = False, cast("bool | None", None)
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        command = [sys.executable, "-P", "-m", "unisono.launchers.worker.fork_server"]
        try:
            with theirs, interrupts_held_back():
                self._process = subprocess.Popen(
                    [*command, str(os.getpid()), str(theirs.fileno()), ",".join(modules), *program],
                    env=self._environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                    stdout=self._said, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
        except BaseException:
            self._control.close()
            self._said.close()
            raise

    def load(self, events: "queue.SimpleQueue[Any]", ends: tuple[type, ...]) -> Any:
        """Wait until it has loaded its modules; return early, with it, at an event of a type that `ends` the waiting.

        What else comes meanwhile is in the queue again afterwards, in its order.
        """
        self._events, held, found = events, [], None
        if not self._is_heard:
            self._is_heard = True
            threading.Thread(target=self._listen, name="unisono-forks", daemon=True).start()
        while self._is_ready is None and found is None:
            with contextlib.suppress(queue.Empty):
                # A signal between the interpreter's last check and a wait would not end that wait.
                event = events.get(timeout=_LOOK_S)
                if isinstance(event, ends):
                    found = event
                elif not isinstance(event, Loaded):
                    held.append(event)
        for event in held:
            events.put(event)
        return found

    def _listen(self) -> None:
        answer = b""
        with contextlib.suppress(OSError):  # closed meanwhile
            answer = self._control.recv(REQUEST_BYTES)
        is_ready = bool(answer) and "is_ready" in json.loads(answer)
        if is_ready and not self._is_quiet:  # else each worker says it again
            self._said.seek(0)
            sys.stderr.write(self._said.read().decode(errors="replace"))
        self._control.settimeout(_ANSWER_S)
        self._is_ready = is_ready
        self._events.put(Loaded())  # where it is waited for now, which may be another queue than at first

    def fork(
        self, argv: list[str], environment: Mapping[str, str], streams: Sequence[int], passed: Mapping[str, int]
    ) -> Forked | None:
        """Fork a worker.

        Args:
            argv: As for `child.main`.
            environment: All its variables.
            streams: Descriptors of its standard input, output and error.
            passed: More descriptors, by the names of the variables that tell it their numbers.

        Returns:
            None where it cannot be done here: it has to be started as a new process.

        Raises:
            OSError: There is no room for one more process.
        """
        if not self._is_ready or _of_all(environment) != _of_all(self._environment):
            return None
        told = {name: value for name, value in environment.items() if self._environment.get(name) != value}
        unset = [name for name in self._environment if name not in environment]
        message = json.dumps({"argv": argv, "set": told, "unset": unset, "passed": [*passed]}).encode()
        if len(message) > REQUEST_BYTES:
            return None
        with adopting() as can_adopt:
            if not can_adopt:
                return None
            try:
                socket.send_fds(self._control, [message], [*streams, *passed.values()])
            except OSError:  # it has ended, or one of our own streams is closed
                return None
            answer = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                answer = self._control.recv(REQUEST_BYTES)
            if not answer:  # it was killed, or somebody has stopped it: it shall fork none that nobody knows of
                self._is_ready = False
                self._process.kill()
                return None
        found = json.loads(answer)
        if "error" in found:
            raise OSError(found["error"])
        return Forked(found["pid"])

    def close(self) -> None:
        """End it; its workers go on."""
        self._process.kill()
        self._process.wait()
        self._control.close()
        self._said.close()


def _of_all(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that all workers of a launch have in common."""
    return {name: value for name, value in environment.items() if not name.startswith(_PER_WORKER)}


@contextlib.contextmanager
def fork_server(spec: LaunchSpec) -> Iterator[ForkServer | None]:
    """Start a server for a launch, where it can have one, and end it at the end of the block."""
    server = None
    if modules := modules_for(spec, os.environ):
        with contextlib.suppress(OSError):  # no room: then there is none for a worker either, which says so
            environment = worker_environment(spec, spec.ranks.start, "", 0, os.environ)
            target = spec.target
            program = [target.path, *target.args] if isinstance(target, ScriptTarget) else [target.name]
            server = ForkServer(modules, environment, program, is_quiet=spec.output == "quiet")
    try:
        yield server
    finally:
        if server is not None:
            server.close()


def start(
    forks: ForkServer | None, argv: list[str], environment: Mapping[str, str], outputs: Sequence[int | None],
    passed: Mapping[str, int], *, reads_input: bool,
) -> Worker:  # fmt: skip
    """Start a worker in a session of its own: forked where that can be, else as a new process.

    Args:
        forks: The server, if there is one.
        argv: As for `child.main`.
        environment: Its variables.
        outputs: Descriptors of its standard output and error; None: our own.
        passed: More descriptors, by the names of the variables that tell it their numbers.
        reads_input: Whether it reads our standard input.

    Raises:
        OSError: It cannot be started.
    """
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        streams = [own if given is None else given for own, given in zip((1, 2), outputs, strict=True)]
        source = 0 if reads_input else nothing.fileno()
        if forks is not None and (worker := forks.fork(argv, environment, [source, *streams], passed)) is not None:
            return worker
        return subprocess.Popen(
            # -P: files of the working directory must not shadow the standard library during start-up.
            [sys.executable, "-P", "-m", "unisono.launchers.worker.child", *argv],
            env={**environment, **{name: str(fd) for name, fd in passed.items()}},
            pass_fds=[*passed.values()],
            stdin=None if reads_input else subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            start_new_session=True,
        )
