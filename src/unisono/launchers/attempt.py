"""One attempt of a launch: start the workers, watch them, find out how it ended, leave nothing behind.

In: a `LaunchSpec` and the queue of events. Out: an `Outcome`. The supervisor is one loop over one queue (`group`).
Whether another attempt follows is not decided here. Must not import torch.
"""

import contextlib
import functools
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

from unisono.errors import LaunchError, WorkerFailed
from unisono.launchers.cell import CellBar, cell_bar
from unisono.launchers.control import Control
from unisono.launchers.forking import ForkServer
from unisono.launchers.living import live_recovery, take_in, tend
from unisono.launchers.outcomes import (
    Ended,
    Failed,
    Outcome,
    ending_of,
    in_words,
    stopped,
    tell_of_loners,
    tell_what_is_kept,
    told_by,
)
from unisono.launchers.scratch import scratch_directory
from unisono.launchers.spec import LaunchSpec
from unisono.launchers.supervision.failure import WorkerExit, describe, describe_kill
from unisono.launchers.supervision.live_following import Recovery
from unisono.launchers.supervision.live_hosts import Relay
from unisono.launchers.supervision.memory_kills import count_kills
from unisono.launchers.supervision.restarts import Ending
from unisono.launchers.supervision.supervisor import Supervisor
from unisono.launchers.worker_group import Called, Events, OutputBroken, Signalled, WorkerGroup, next_event
from unisono.system.heartbeat import STEPPING, STOPPED, Reading
from unisono.system.machine import usable_cores
from unisono.system.messages import tell
from unisono.system.words import counted

# How long to wait for a better culprit after the first failure that blames a peer.
_ROOT_WAIT_S = 3.0
_LOOK_S = 0.25
_CROWD = 4  # workers a core from which on their start is told of
_LOAD_S, _LOAD_MB = 2.0, 160  # what loading torch takes of a core and of memory
_FORK_S, _FORK_MB = 0.2, 25  # what it takes to start a worker that is forked from a process which has loaded it


def attempt(spec: LaunchSpec, events: Events, relay: Relay | None = None, forks: ForkServer | None = None) -> Outcome:
    """Run one attempt to its end; no process of it is left, except one that even SIGKILL does not end.

    Args:
        spec: The launch on this host.
        events: What is waited for.
        relay: To the launchers of other hosts, where workers may go on without one of any host.
        forks: What workers are forked from, where there is one.

    Returns:
        None when every worker ended well.
    """
    with scratch_directory() as directory, _reserved_port() as port:
        group = WorkerGroup(spec, directory, events, forks)
        bar = cell_bar(is_shown=spec.output != "quiet")
        memory_kills = count_kills()
        try:
            tell_of_crowd(spec, is_forked=forks is not None)
            early = group.start(port)
            if early is None:
                outcome = _supervise(group, events, memory_kills, bar, relay)
            else:
                outcome = Ended(early.why, early.is_gentle) if isinstance(early, Called) else early
            # Before a restart the survivors' work is lost anyway; else they may end in their own way.
            is_lost = isinstance(outcome, Failed) and spec.max_restarts > 0
            if not is_lost and not (isinstance(outcome, Ended) and not outcome.is_gentle):
                _stop(group, events, outcome)
            if isinstance(outcome, Signalled):
                tell_what_is_kept(group)
        except LaunchError as error:
            outcome = Failed(error, Ending(rank=group.num_started, what="could not be started"))
        finally:
            group.close()
        bar.end(functools.partial(told_by, group), in_words(outcome), getattr(outcome, "error", None))
    if outcome is None:
        tell_of_loners(group)
        return OutputBroken() if group.is_output_broken else group.interrupted
    return outcome


def tell_of_crowd(spec: LaunchSpec, *, is_forked: bool) -> None:
    """Say before the first attempt what starts, where workers are many times the cores: they are silent for long."""
    count, cores = spec.workers + spec.spares, usable_cores()
    if count <= _CROWD * cores or spec.attempt or (spec.placement and spec.placement.attempt) or spec.output == "quiet":
        return
    seconds = _LOAD_S + count * _FORK_S / cores if is_forked else count * _LOAD_S / cores
    size = _LOAD_MB + count * _FORK_MB if is_forked else count * _LOAD_MB
    tell(
        f"starting {count} workers on {counted(cores, 'core')}: about {seconds:.0f} s until all have loaded torch, and "
        f"about {size / 1000:.1f} GB of memory before any model. "
        f"Hint: -n {cores} has a worker for each core."
    )


def _supervise(group: WorkerGroup, events: Events, memory_kills: int, bar: CellBar, relay: Relay | None) -> Outcome:
    """Wait until all workers ended well, or there is a reason to stop the rest."""
    live = live_recovery(group, relay)
    with Control(events.put) as control:
        outcome = _watch(group, events, memory_kills, live, control, bar)
    if isinstance(outcome, Failed) and live is not None and live.wanted != group.spec.workers:
        return replace(outcome, wanted=live.wanted)
    return outcome


def _watch(
    group: WorkerGroup, events: Events, memory_kills: int, live: Recovery | None, control: Control, bar: CellBar
) -> Outcome:
    supervisor = Supervisor(group, live)
    while group.running or (live is not None and live.is_waiting):
        live = supervisor.live = None if live is None else live.heir
        tend(live, group, control)
        bar.look(functools.partial(told_by, group))
        event = next_event(events, time.monotonic() + _LOOK_S)
        if live is not None and (why := take_in(live, group, event) or live.look()):
            return _find_failure(group, events, memory_kills, why)
        if event is None:
            supervisor.look()
            if supervisor.unkillable is not None:
                rank = supervisor.unkillable
                text = (
                    f"rank {rank} of {group.spec.world_size} does not end, although it was killed {group.killed[rank]} "
                    "Hint: it ends when the kernel lets go of it; a restart of the machine may be needed."
                )
                ending = Ending(rank=rank, what=text, is_unkillable=True)
                return Failed(WorkerFailed(text, rank=rank, exit_code=137), ending)
            continue
        group.note(event)
        if live is not None and isinstance(event, Called) and event.is_gentle and not _saves(group):
            continue  # who has come waits: others go on with what would be lost
        if isinstance(event, Signalled | Called):
            return _stop_between_steps(group, events, event, live, control)
        if isinstance(event, OutputBroken):
            return event
        if isinstance(event, WorkerExit) and event.code != 0 and not group.has_stopped(event) and live is None:
            return _find_failure(group, events, memory_kills)
    return stopped(group)


def _saves(group: WorkerGroup) -> bool:
    """Whether all running workers are in steps of a run that saves; not where none is left."""
    readings = _of_members(group)
    return bool(readings) and all(reading.state == STEPPING for reading in readings)


def _of_members(group: WorkerGroup) -> list[Reading]:
    """Return what the workers have told that train; one that was released may still be at the end of its program."""
    return [reading for rank, reading in group.readings().items() if rank not in group.excluded]


def _stop_between_steps(
    group: WorkerGroup, events: Events, asked: Signalled | Called, live: Recovery | None, control: Control
) -> Outcome:
    """Let a run that can do so stop after the step in progress; what `asked` stands for where not, or not in time."""
    if isinstance(asked, Called) and not asked.is_gentle:
        return Ended(asked.why, is_gentle=False)
    mattering = [end for rank, end in group.exits.items() if rank not in group.excluded]
    all_dead = not group.running and not any(_is_well(group, end) for end in mattering)
    if all_dead or any(reading.state != STEPPING for reading in _of_members(group)):
        return Ended(asked.why, is_gentle=True) if isinstance(asked, Called) else asked
    group.ask_stop()
    deadline = time.monotonic() + group.spec.stop_grace_s
    while (group.running or (live is not None and live.is_waiting)) and (event := next_event(events, deadline)):
        group.note(event)
        if live is not None:
            take_in(live, group, event)
            live = live.heir
            live.dismiss()
            tend(live, group, control)
        # A closing terminal sends SIGHUP twice: that is no sign of impatience.
        if isinstance(event, Signalled) and event.signum != signal.SIGHUP:
            return Signalled(event.signum, is_final=True)
        if isinstance(event, Called) and not event.is_gentle:
            return Ended(event.why, is_gentle=False)
    counting = (end for rank, end in group.exits.items() if rank not in group.excluded)
    # Who has saved, and is still at the end of its program, has stopped: what it does there may take any time.
    if all(each.state == STOPPED for each in _of_members(group)) and all(_is_well(group, end) for end in counting):
        return stopped(group)
    return Ended(asked.why, is_gentle=False) if isinstance(asked, Called) else Signalled(asked.signum, is_final=True)


def _is_well(group: WorkerGroup, end: WorkerExit) -> bool:
    return end.code == 0 or group.has_stopped(end)


def _find_failure(group: WorkerGroup, events: Events, memory_kills: int, why: str = "") -> Outcome:
    """Return the root cause; give it time to show when so far every failure blames a peer. `why`: where it is a death
    on another host.
    """
    deadline = time.monotonic() + _ROOT_WAIT_S
    root = group.root()
    while root is not None and root.is_secondary and group.running:
        event = next_event(events, deadline)
        if event is None:
            break
        if isinstance(event, Signalled):
            return event
        group.note(event)
        root = group.root()
    if root is None:
        return Ended(why, is_gentle=False)
    ended = {end.rank: group.last_reading(end.rank) for end in group.exits.values() if end.code == 0}
    known = describe_kill(group.killed.get(root.rank, ""), count_kills() - memory_kills)
    step = group.last_reading(root.rank).step
    message = describe(root, group.spec.world_size, ended, group.running, known, step)
    return Failed(WorkerFailed(message, rank=root.rank, exit_code=root.exit_code), ending_of(group, root, message))


def _stop(group: WorkerGroup, events: Events, outcome: Outcome) -> None:
    """Ask the running workers to end, and wait for it at most the grace period."""
    interrupted = isinstance(outcome, Signalled) and outcome.signum == signal.SIGINT
    if isinstance(outcome, Signalled) and outcome.is_final:
        return
    for rank in group.guests:
        group.kill(rank, "")
    group.signal(signal.SIGINT if interrupted else signal.SIGTERM)
    deadline = time.monotonic() + group.spec.grace_s
    while group.running and (event := next_event(events, deadline)):
        group.note(event)
        if isinstance(event, Signalled):
            if event.signum == signal.SIGINT:
                return  # the user is out of patience: `close` kills
            # A closing terminal sends SIGHUP twice: that is no reason to shorten the grace.
            group.signal(signal.SIGTERM)


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Hold a port that rank 0 can bind and nobody else is given: bound, reusable, not listening."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
