"""The processes of one launch: start them, signal them, and leave nothing behind.

In: a `LaunchSpec` and a queue. Out: events in that queue: a worker ended, nobody reads our output. Must not
import torch.

No worker outlives the launcher, however that one dies: the kernel kills each worker when the launching thread
ends (`child`), and a *reaper* process, which holds the read end of a pipe that only the launcher writes to,
then kills the workers' process groups with their data loaders, and removes the launch's private directory and
scratch. Only a process that starts a session of its own escapes.
"""

import contextlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

from unisono.errors import LaunchError, RunStopped
from unisono.launchers.control import Asked
from unisono.launchers.forking import ForkServer, Loaded, Worker, start
from unisono.launchers.output import OutputPump
from unisono.launchers.scratch import interrupts_held_back
from unisono.launchers.spec import FunctionTarget, LaunchSpec, ProgramTarget, ScriptTarget
from unisono.launchers.streams import STDERR, STDOUT
from unisono.launchers.supervision.channels import LEADERS_ERROR_VARIABLE, LIVE_VARIABLE, Channels, HostSaid, Told
from unisono.launchers.supervision.failure import Failure, WorkerExit, find_root, load_reports
from unisono.launchers.supervision.reaper import Reaper
from unisono.launchers.supervision.stacks import STACK_SIGNAL, Frame, main_thread, stack_file
from unisono.launchers.worker.child import FUNCTION_FILE
from unisono.launchers.worker.environment import worker_environment
from unisono.launchers.worker.error_file import with_recorded
from unisono.system.disk import hint_of
from unisono.system.heartbeat import STOPPED, HeartbeatPage, Reading
from unisono.system.processes import look_at

# How long SIGKILL may take; a process in an uninterruptible system call can take for ever.
_KILL_WAIT_S = 5.0
_HEARTBEAT_S = 0.25
_STACK_WAIT_S = 1.0
_UNKNOWN_CODE = 255


@dataclass(frozen=True, slots=True)
class Signalled:
    """The launcher received a signal that asks it to stop; `is_final` when there is no time left for politeness."""

    signum: int
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Called:
    """The workers of all hosts are to end, so that others can start: between two steps, where `is_gentle`."""

    why: str
    is_gentle: bool = False


@dataclass(frozen=True, slots=True)
class OutputBroken:
    """Nobody reads our output any more."""


@dataclass(frozen=True, slots=True)
class OutputDone:
    """All output has been written."""


Event = Loaded | WorkerExit | Signalled | Called | OutputBroken | OutputDone | Told | HostSaid | Asked
Events = queue.SimpleQueue[Event]


@final
class WorkerGroup:
    """The processes of one launch. Nobody else signals them, and none is reaped before `close`.

    An ended worker stays a zombie until `close`, so that its process group's number cannot pass to a
    stranger.
    """

    def __init__(self, spec: LaunchSpec, directory: str, events: Events, forks: ForkServer | None = None) -> None:
        self.spec = spec
        self.directory = directory
        self.exits: dict[int, WorkerExit] = {}
        self.is_output_broken = False
        self.interrupted: Signalled | None = None  # while the last output was written
        self.killed: dict[int, str] = {}  # by us, and why
        self.excluded: set[int] = set()  # ranks whose deaths the others have lived through
        self.guests: set[int] = set()  # ranks that wait to join the others
        self.channels = Channels(events.put) if spec.may_be_live else None
        self._events = events
        self._heartbeats: dict[int, HeartbeatPage] = {}  # both by rank
        self._workers: dict[int, Worker] = {}
        self._forks = forks
        self._reaper: Reaper | None = None
        self._pump = OutputPump(on_broken=lambda: events.put(OutputBroken()), on_done=lambda: events.put(OutputDone()))

    @property
    def num_started(self) -> int:
        """How many workers have been started."""
        return len(self._workers)

    @property
    def ranks(self) -> list[int]:
        """Ranks of all that have been started; those that have joined later have the numbers after the first ones."""
        return [*self._workers]

    @property
    def running(self) -> list[int]:
        """Ranks that have not ended."""
        return [rank for rank in self._workers if rank not in self.exits]

    def start(self, port: int) -> Signalled | Called | None:
        """Start all workers and the reaper; or return what came before and wants none to start."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        try:
            self._how = _program(self.spec, self.directory), port
            with interrupts_held_back():
                # First: it must know of every worker, whenever we die.
                self._reaper = Reaper([self.directory, *([self.spec.scratch] if self.spec.scratch else [])])
            early = self._forks.load(self._events, (Signalled, Called)) if self._forks is not None else None
            if isinstance(early, Signalled | Called):
                return early
            with interrupts_held_back():  # `child` takes it once it can do so without a traceback
                for rank in self.spec.ranks:
                    self._start_worker(rank)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread could be started
            text = f"expected to start {self.spec.workers} workers, got {len(self._workers)}: {error}."
            hint = "fewer workers, or higher limits for processes, memory and open files (ulimit -a)"
            known = hint_of(error, hint) if isinstance(error, OSError) else f" Hint: {hint}."
            raise LaunchError(text + known) from error
        self._pump.start()
        return None

    def add(self, rank: int) -> None:
        """Start one more, which joins the others; by the thread that has started them, whose end is theirs.

        Raises:
            OSError: It cannot be started.
            RuntimeError: There is no room for a thread.
        """
        with interrupts_held_back():
            self._start_worker(rank)

    def _start_worker(self, rank: int) -> None:
        program, port = self._how
        self._heartbeats[rank] = HeartbeatPage.create(Path(self.directory) / f"heartbeat-{rank}")
        outputs: list[int | None] = []
        environment = worker_environment(self.spec, rank, self.directory, port, os.environ)
        passed: dict[str, int] = {}
        try:
            if self.channels is not None:
                passed[LIVE_VARIABLE] = self.channels.open(rank).detach()
                if (error := self.spec.streams.leaders_error(self.spec.output)) is not None:
                    passed[LEADERS_ERROR_VARIABLE] = os.dup(error)
            for stream in (STDOUT, STDERR):
                outputs.append(self._open_output(rank, stream))  # noqa: PERF401 - closed where the next one fails
            worker = start(self._forks, program, environment, outputs, passed, reads_input=rank == 0)
        finally:
            for fd in (*passed.values(), *outputs):
                if fd is not None:
                    os.close(fd)
        self._workers[rank] = worker
        if self._reaper is not None:
            self._reaper.watch(worker.pid)
        threading.Thread(target=self._watch, args=(rank, worker.pid), name="unisono-watch", daemon=True).start()

    def _open_output(self, rank: int, stream: int) -> int | None:
        """Return the pipe into which a worker writes `stream`; None for our own descriptor directly."""
        spec = self.spec
        local_rank, attempt = rank - spec.ranks.start, spec.placement.attempt if spec.placement else spec.attempt
        kept = spec.streams.open(attempt, local_rank, stream)
        lines = spec.streams.lines(spec.output, stream, rank, local_rank, spec.world_size, is_kept=kept is not None)
        return self._pump.open(*lines, kept) if lines else None

    def _watch(self, rank: int, pid: int) -> None:
        code = _UNKNOWN_CODE
        # No such child: the program ignores SIGCHLD, so the kernel reaps and nobody learns the code.
        with contextlib.suppress(ChildProcessError):
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            if end is not None:
                code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        if self.channels is not None:
            self.channels.hear_out(rank)
        self._events.put(WorkerExit(rank=rank, code=code, time_s=time.monotonic()))

    def signal(self, signum: int) -> None:
        """Send a signal to the running workers; all but SIGINT also reach the processes they started."""
        for rank in self.running:
            pid = self._workers[rank].pid
            with contextlib.suppress(ProcessLookupError):
                # Like a terminal, SIGINT would make every data loader print a traceback of its own.
                (os.kill if signum == signal.SIGINT else os.killpg)(pid, signum)

    def readings(self, *, of_guests: bool = False) -> dict[int, Reading]:
        """Return what the running workers have told, by rank; of those that wait to join, or of the others."""
        return {rank: self._heartbeats[rank].read() for rank in self.running if (rank in self.guests) == of_guests}

    def last_reading(self, rank: int) -> Reading:
        """Return what a worker has told, also after its end."""
        return self._heartbeats[rank].read()

    def ask_stop(self) -> None:
        """Ask the run to stop after the step in progress."""
        for heartbeat in self._heartbeats.values():
            heartbeat.ask_stop()

    def process_state(self, rank: int) -> str:
        """Return the kernel's letter for a worker; see `Process.state`."""
        return look_at(self._workers[rank].pid).state

    def kill(self, rank: int, why: str) -> None:
        """Kill one worker with all that it has started, and remember why."""
        self.killed[rank] = why
        self._signal(rank, signal.SIGKILL)

    def wake(self, rank: int) -> None:
        """Let a stopped worker go on."""
        self._signal(rank, signal.SIGCONT)

    def stacks(self, ranks: list[int]) -> dict[int, list[Frame]]:
        """Ask workers for the stacks of their main threads, innermost frame first; empty where none came in time.

        Only workers in which a run lives are asked: they know the signal.
        """
        files = {rank: stack_file(self.directory, rank) for rank in ranks}
        sizes = {rank: file.stat().st_size if file.exists() else 0 for rank, file in files.items()}
        asked = [rank for rank in ranks if files[rank].exists() and self.last_reading(rank).is_joined]
        for rank in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._workers[rank].pid, STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_WAIT_S
        found: dict[int, list[Frame]] = {rank: [] for rank in ranks}
        while asked and time.monotonic() < deadline:
            time.sleep(0.02)  # a file that a stranger's signal handler writes gives no event
            for rank in asked:
                found[rank] = main_thread(files[rank].read_text(errors="replace")[sizes[rank] :])
            asked = [rank for rank in asked if not found[rank]]
        return found

    def _signal(self, rank: int, signum: int) -> None:
        worker = self._workers.get(rank)  # none where it could not be started
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signum)

    def close(self) -> None:
        """Kill and reap whatever is left, also the descendants of dead workers, and write the last output."""
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_WAIT_S
        while self.running and (event := next_event(self._events, deadline)):
            self.note(event)
        if self._reaper is not None:  # before the workers' numbers become free
            self._reaper.dismiss()
        if self.channels is not None:
            self.channels.close()
        for rank in self.exits:
            self._workers[rank].wait()
        self._pump.finish()
        # Our reader may be slow (a pager): wait for it, but not against the user's will. A signal between the
        # interpreter's last check and a wait would not end that wait: look up now and then.
        while not isinstance(last := next_event(self._events, time.monotonic() + _HEARTBEAT_S), OutputDone):
            if last is not None:
                self.note(last)
            if isinstance(last, Signalled):
                self.interrupted = last
                return

    def note(self, event: Event) -> None:
        """Take an event into account."""
        if isinstance(event, WorkerExit):
            if event.rank not in self.exits:
                self._let_go(event.rank)
            self.exits[event.rank] = event
        elif isinstance(event, OutputBroken):
            self.is_output_broken = True

    def _let_go(self, rank: int) -> None:
        """Free the descriptors that a worker has taken: a run may outlive hundreds of them."""
        self._heartbeats[rank].keep()
        if self.channels is not None:
            self.channels.forget(rank)

    def root(self) -> Failure | None:
        """Return the root cause as far as it is known."""
        mattering = [rank for rank in self.ranks if rank not in self.excluded | self.guests]
        failed = [
            self.exits[rank] for rank in mattering if rank in self.exits and not self.has_stopped(self.exits[rank])
        ]
        reports = load_reports(self.directory, mattering)
        return find_root(failed, with_recorded(self.directory, failed, reports))

    def has_stopped(self, end: WorkerExit) -> bool:
        """Whether a worker has ended because its run was asked to stop, and has saved."""
        return end.code == RunStopped.exit_code and self._heartbeats[end.rank].read().state == STOPPED


def next_event(events: Events, deadline: float) -> Event | None:
    """Return the next event, None if there is none until `deadline` (CLOCK_MONOTONIC, seconds)."""
    try:
        return events.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return None


def _program(spec: LaunchSpec, directory: str) -> list[str]:
    """Return what `child.main` takes."""
    start = [str(os.getpid()), directory]
    target = spec.target
    if isinstance(target, FunctionTarget):
        call = {name: getattr(target, name) for name in FunctionTarget.__slots__}
        fd = os.open(Path(directory) / FUNCTION_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            pickle.dump(call, file)
        return [*start, "function", FUNCTION_FILE]
    if isinstance(target, ScriptTarget):
        return [*start, "script", target.path, *target.args]
    if isinstance(target, ProgramTarget):
        return [*start, "program", target.name, *target.args]
    return [*start, "module", target.name, *target.args]
