"""Run one launch on this host: supervise its workers, judge a failure, pass on signals.

In: a `LaunchSpec`. Out: a normal return when every worker ended well, else `WorkerFailed` with the root
cause. The supervisor is one loop over one queue of events (`crew`). Must not import torch.
"""

import contextlib
import errno
import queue
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from unisono.errors import WorkerFailed
from unisono.launchers.crew import Crew, Events, OutputBroken, Signalled, next_event, wait_event
from unisono.launchers.failure import WorkerExit, describe
from unisono.launchers.spec import LaunchSpec, check_target

# How long to wait for a better culprit after the first failure that blames a peer.
_ROOT_WAIT_S = 3.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_Outcome = WorkerFailed | OutputBroken | Signalled | None


@dataclass(frozen=True, slots=True)
class _Signals:
    previous: dict[int, Any] = field(default_factory=dict)
    received: list[int] = field(default_factory=list)


def run_local(spec: LaunchSpec) -> None:
    """Run one launch to its end; when this returns or raises, no process of it is left.

    Blocks. May be called from any thread. Outside the main thread Python lets nobody handle signals: there
    Ctrl-C and SIGTERM act on the program as always, and the workers die with it.

    Args:
        spec: The launch.

    Raises:
        ConfigError: The script or module does not exist.
        LaunchError: The processes could not be started.
        WorkerFailed: A worker failed; carries the root cause, its rank and exit code.
        KeyboardInterrupt: SIGINT came; the workers got it too, and are gone.
        SystemExit: SIGTERM or SIGHUP came; code 128 + n.
        BrokenPipeError: The reader of our output went away (``| head``); the workers were stopped.
    """
    check_target(spec.target)
    events: Events = queue.SimpleQueue()
    with _signals_into(events) as signals, _private_directory() as directory, _reserved_port() as port:
        crew = Crew(spec, directory, events)
        try:
            crew.start(port)
            outcome = _supervise(crew, events)
            _stop(crew, events, outcome)
        finally:
            crew.close()
    if isinstance(outcome, WorkerFailed):
        raise outcome
    if signals.received:
        signum = signals.received[0]
        _deliver(signum, signals.previous[signum])
    if crew.is_output_broken:
        raise BrokenPipeError(errno.EPIPE, "the reader of the output went away; the workers were stopped")


def _supervise(crew: Crew, events: Events) -> _Outcome:
    """Wait until all workers ended well, or there is a reason to stop the rest."""
    while crew.running:
        event = wait_event(events)
        crew.note(event)
        if isinstance(event, (Signalled, OutputBroken)):
            return event
        if isinstance(event, WorkerExit) and event.code != 0:
            return _find_failure(crew, events)
    return None


def _find_failure(crew: Crew, events: Events) -> _Outcome:
    """Return the root cause; give it time to show when so far every failure blames a peer."""
    deadline = time.monotonic() + _ROOT_WAIT_S
    root = crew.root()
    while root is not None and root.is_secondary and crew.running:
        event = next_event(events, deadline)
        if event is None:
            break
        if isinstance(event, Signalled):
            return event
        crew.note(event)
        root = crew.root()
    assert root is not None
    ended = [end.rank for end in crew.exits.values() if end.code == 0]
    message = describe(root, crew.spec.workers, ended, crew.running)
    return WorkerFailed(message, rank=root.rank, exit_code=root.exit_code)


def _stop(crew: Crew, events: Events, outcome: _Outcome) -> None:
    """Ask the running workers to end, and wait for it at most the grace period."""
    interrupted = isinstance(outcome, Signalled) and outcome.signum == signal.SIGINT
    crew.signal(signal.SIGINT if interrupted else signal.SIGTERM)
    deadline = time.monotonic() + crew.spec.grace_s
    while crew.running and (event := next_event(events, deadline)):
        crew.note(event)
        if isinstance(event, Signalled):
            if event.signum == signal.SIGINT:
                return  # the user is out of patience: `close` kills
            # A closing terminal sends SIGHUP twice: that is no reason to shorten the grace.
            crew.signal(signal.SIGTERM)


@contextlib.contextmanager
def _private_directory() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="unisono-")  # mode 0700
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Hold a port that rank 0 can bind and nobody else is given: bound, reusable, not listening."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextlib.contextmanager
def _signals_into(events: Events) -> Iterator[_Signals]:
    """Turn the signals that ask us to stop into events."""
    signals = _Signals()

    def put(signum: int, frame: FrameType | None) -> None:
        signals.received.append(signum)
        events.put(Signalled(signum))

    if threading.current_thread() is threading.main_thread():
        for signum in _STOP_SIGNALS:
            handler = signal.getsignal(signum)
            if handler not in (signal.SIG_IGN, None):  # nohup and background jobs ignore some: so do we
                signals.previous[signum] = signal.signal(signum, put)
    try:
        yield signals
    finally:
        for number, handler in signals.previous.items():
            signal.signal(number, handler)


def _deliver(signum: int, handler: Any) -> None:
    """Let a signal have the effect it would have had, now that the workers are gone."""
    if handler != signal.SIG_DFL:
        signal.raise_signal(signum)  # KeyboardInterrupt, or the program's own handler
    raise SystemExit(128 + signum)
