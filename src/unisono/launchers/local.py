"""Run one launch on this host: attempt it, restart it where that helps, pass on signals.

In: a `LaunchSpec`. Out: a normal return when every worker ended well, else `WorkerFailed` with the root
cause. `attempt` runs one attempt, `restarts` decides whether another follows. Must not import torch.
"""

import contextlib
import errno
import os
import queue
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from unisono.errors import LaunchError, RunStopped, WorkerFailed
from unisono.launchers.attempt import attempt
from unisono.launchers.forking import ForkServer, fork_server
from unisono.launchers.outcomes import Failed, Outcome, Stopped
from unisono.launchers.spec import LaunchSpec, check_target
from unisono.launchers.supervision.memory_kills import check_address_space
from unisono.launchers.supervision.resizing import with_least
from unisono.launchers.supervision.restarts import GiveUp, Restarts
from unisono.launchers.worker_group import Events, OutputBroken, Signalled
from unisono.system.devices import VISIBLE_VARIABLE
from unisono.system.machine import find_gpus
from unisono.system.messages import interrupted, tell

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@dataclass(slots=True)
class Signals:
    """Signals that ask us to stop, as events."""

    events: Events = field(default_factory=queue.SimpleQueue)
    previous: dict[int, Any] = field(default_factory=dict)
    received: list[int] = field(default_factory=list)


def run_local(spec: LaunchSpec) -> None:
    """Run one launch to its end; when this returns or raises, no process of it is left.

    Blocks. May be called from any thread. Outside the main thread Python lets nobody handle signals: there
    Ctrl-C and SIGTERM act on the program as always, and the workers die with it.

    Raises:
        ConfigError: The script or module does not exist; there are spares, and one worker.
        LaunchError: The processes could not be started.
        WorkerFailed: A worker failed; carries the root cause, its rank and exit code.
        RunStopped: SIGINT, SIGTERM or SIGHUP came, and the run has stopped between two steps and saved.
        KeyboardInterrupt: SIGINT came; the workers got it too, and are gone.
        SystemExit: SIGTERM or SIGHUP came; code 128 + n.
        BrokenPipeError: The reader of our output went away (``| head``); the workers were stopped.
    """
    check_target(spec.target)
    spec.check_spares()
    spec.check_elastic()
    check_address_space()
    spec = replace(spec, run_id=spec.run_id or os.urandom(16).hex())
    if spec.max_restarts:
        # Fixed from now on: a restart may use fewer workers.
        replicas = os.environ.get("UNISONO_REPLICAS", str(spec.workers))
        spec = replace(spec, env={"UNISONO_REPLICAS": replicas, **spec.env})
    with stop_signals() as signals, fork_server(spec) as forks:
        outcome = _attempts(spec, signals, forks)
    if isinstance(outcome, Failed):
        raise outcome.error
    if isinstance(outcome, Stopped):
        raise RunStopped(outcome.step)
    if isinstance(outcome, Signalled):
        deliver(outcome.signum, signals.previous[outcome.signum])
    if isinstance(outcome, OutputBroken):
        raise BrokenPipeError(errno.EPIPE, "the reader of the output went away; the workers were stopped")


def _attempts(spec: LaunchSpec, signals: Signals, forks: ForkServer | None) -> Outcome:
    """Attempt the launch until it ends well or a restart would not help."""
    restarts, first = Restarts(spec.max_restarts, spec.workers), spec
    while True:
        outcome = attempt(replace(spec, attempt=restarts.num_restarts), signals.events, forks=forks)
        if not isinstance(outcome, Failed):
            return outcome
        if isinstance(outcome.error, LaunchError) and restarts.num_restarts == 0:
            return outcome  # it has never worked
        decision = restarts.judge(outcome.ending)
        if isinstance(decision, GiveUp):
            error = outcome.error
            if not decision.reason or not isinstance(error, WorkerFailed):
                return outcome
            text = f"{error}\n{decision.reason}"
            return replace(outcome, error=WorkerFailed(text, rank=error.rank, exit_code=error.exit_code))
        if signals.received:  # meanwhile
            return Signalled(signals.received[0])
        dropped = "" if decision.dropped is None else f" Slot {decision.dropped} keeps failing and is given up."
        if spec.output != "quiet":
            count = outcome.wanted or len(decision.slots)
            tell(
                f"{outcome.ending.what}{dropped} Restart {restarts.num_restarts} with {count} "
                f"worker{'s' if count > 1 else ''} {restarts.start}{restarts.spent()}."
            )
        spec = _on_slots(spec, decision.slots, first, outcome.wanted)
        restarts.slots = restarts.slots if len(restarts.slots) == spec.workers else tuple(range(spec.workers))
        # What the old workers' watchers still say must not be taken for the new ones'.
        signals.events = queue.SimpleQueue()


def _on_slots(spec: LaunchSpec, slots: tuple[int, ...], first: LaunchSpec, wanted: int = 0) -> LaunchSpec:
    """Return the launch on these slots of the `first` attempt; on GPUs, a slot is a device; or `wanted` on CPUs."""
    count = wanted or len(slots)
    if count == spec.workers:
        return spec
    if count == 1:
        spec = replace(spec, spares=0, elastic=None)  # they are for those that have others
    else:
        spec = replace(spec, elastic=with_least(spec.elastic, count))
    if wanted:
        return replace(spec, workers=wanted)  # it is only on CPUs that workers come and go
    if first.devices and not spec.share_devices:
        return replace(spec, workers=len(slots), devices=tuple(first.devices[slot] for slot in slots))
    env = dict(spec.env)
    visible = () if spec.devices is not None or spec.share_devices else find_gpus({**os.environ, **first.env})
    if len(visible) >= first.workers:  # fewer: they compute on the CPU
        env[VISIBLE_VARIABLE] = ",".join(visible[slot] for slot in slots)
    return replace(spec, workers=len(slots), env=env)


@contextlib.contextmanager
def stop_signals() -> Iterator[Signals]:
    """Turn the signals that ask us to stop into events."""
    signals = Signals()

    def put(signum: int, frame: FrameType | None) -> None:
        signals.received.append(signum)
        signals.events.put(Signalled(signum))

    if threading.current_thread() is threading.main_thread():
        for signum in _STOP_SIGNALS:
            handler = signal.getsignal(signum)
            if handler not in (signal.SIG_IGN, None):  # nohup and background jobs ignore some: so do we
                signals.previous[signum] = signal.signal(signum, put)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # nobody would learn how workers end
            signals.previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield signals
    finally:
        for number, handler in signals.previous.items():
            signal.signal(number, handler)


def deliver(signum: int, handler: Any) -> None:
    """Let a signal have the effect it would have had, now that the workers are gone."""
    if handler == signal.default_int_handler:
        raise interrupted()
    if handler != signal.SIG_DFL:
        signal.raise_signal(signum)  # KeyboardInterrupt, or the program's own handler
    raise SystemExit(128 + signum)
