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
from dataclasses import dataclass, replace

from unisono.errors import LaunchError, WorkerFailed
from unisono.launchers.cell import CellBar, cell_bar
from unisono.launchers.control import Asked, Control
from unisono.launchers.scratch import scratch_directory
from unisono.launchers.spec import LaunchSpec
from unisono.launchers.supervision.channels import HostSaid, Told
from unisono.launchers.supervision.failure import Failure, WorkerExit, describe, describe_kill, load_reports
from unisono.launchers.supervision.live_hosts import Recovery, Relay, recovery_of
from unisono.launchers.supervision.live_recovery import off
from unisono.launchers.supervision.memory_kills import count_kills
from unisono.launchers.supervision.restarts import Ending
from unisono.launchers.supervision.supervisor import Supervisor
from unisono.launchers.worker_group import Called, Event, Events, OutputBroken, Signalled, WorkerGroup, next_event
from unisono.system.heartbeat import STEPPING, Reading
from unisono.system.messages import tell

# How long to wait for a better culprit after the first failure that blames a peer.
_ROOT_WAIT_S = 3.0
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker failed, or could not be started."""

    error: WorkerFailed | LaunchError
    ending: Ending
    wanted: int = 0  #: How many workers somebody has asked for since; 0: nobody has.


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run has stopped between two steps, and saved."""

    step: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The workers were stopped because those of all hosts are to start again; at once, unless `is_gentle`."""

    why: str
    is_gentle: bool


Outcome = Failed | Stopped | Ended | OutputBroken | Signalled | None


def attempt(spec: LaunchSpec, events: Events, relay: Relay | None = None) -> Outcome:
    """Run one attempt to its end; no process of it is left, except one that even SIGKILL does not end.

    Args:
        spec: The launch on this host.
        events: What is waited for.
        relay: To the launchers of other hosts, where workers may go on without one of any host.

    Returns:
        None when every worker ended well.
    """
    with scratch_directory() as directory, _reserved_port() as port:
        group = WorkerGroup(spec, directory, events)
        bar = cell_bar(is_shown=spec.output != "quiet")
        memory_kills = count_kills()
        try:
            group.start(port)
            outcome = _supervise(group, events, memory_kills, bar, relay)
            # Before a restart the survivors' work is lost anyway; else they may end in their own way.
            is_lost = isinstance(outcome, Failed) and spec.max_restarts > 0
            if not is_lost and not (isinstance(outcome, Ended) and not outcome.is_gentle):
                _stop(group, events, outcome)
            if isinstance(outcome, Signalled):
                _tell_what_is_kept(group)
        except LaunchError as error:
            outcome = Failed(error, Ending(rank=group.num_started, what="could not be started"))
        finally:
            group.close()
        bar.end(functools.partial(_told, group), _in_words(outcome), getattr(outcome, "error", None))
    if outcome is None:
        _tell_of_loners(group)
        return OutputBroken() if group.is_output_broken else group.interrupted
    return outcome


def _told(group: WorkerGroup) -> dict[int, Reading]:
    """Return what the workers have told, by rank, also those that have ended."""
    return {rank: group.last_reading(rank) for rank in group.ranks}


def _in_words(outcome: Outcome) -> str:
    if isinstance(outcome, Stopped):
        return f"stopped after step {outcome.step}, and saved"
    return "done" if outcome is None else "failed" if isinstance(outcome, Failed) else "stopped"


def _supervise(group: WorkerGroup, events: Events, memory_kills: int, bar: CellBar, relay: Relay | None) -> Outcome:
    """Wait until all workers ended well, or there is a reason to stop the rest."""
    live = _live_recovery(group, relay)
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
        _tend(live, group, control)
        bar.look(functools.partial(_told, group))
        event = next_event(events, time.monotonic() + _LOOK_S)
        if live is not None and (why := _heard(live, group, event) or live.look()):
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
        if isinstance(event, Signalled | Called):
            return _stop_between_steps(group, events, event, live, control)
        if isinstance(event, OutputBroken):
            return event
        if isinstance(event, WorkerExit) and event.code != 0 and not group.has_stopped(event) and live is None:
            return _find_failure(group, events, memory_kills)
    return _stopped(group)


def _live_recovery(group: WorkerGroup, relay: Relay | None) -> Recovery | None:
    """Return what decides which deaths the others live through; None where they live through none."""
    spec = group.spec
    if group.channels is None:
        if spec.live == "auto" and spec.workers > 1:
            _tell(group, off(spec.why_not_live))
        return None
    return recovery_of(spec, group.channels.send, functools.partial(_tell, group), relay)


def _tend(live: Recovery | None, group: WorkerGroup, control: Control) -> None:
    """Start the workers that are to join the others, end those that nobody needs, and listen to who wants others."""
    if live is None:
        return
    if why_not := control.serve(live.place):
        _tell(group, f"unisono scale cannot reach this run: {why_not}.")
    for rank in live.unwanted & {*group.running}:
        if rank not in group.killed:
            group.kill(rank, "by its launcher: it cannot join the others any more.")
    for rank in live.start():
        try:
            group.add(rank)
        except (OSError, RuntimeError) as error:
            live.dismiss(f"no worker can be started: {error}")
    group.guests = live.guests


def _heard(live: Recovery, group: WorkerGroup, event: Event | None) -> str:
    """Take in what has happened; return why this world cannot be gone on with, empty where it can."""
    reason = ""
    if isinstance(event, Asked):
        live.resize(event)
    elif isinstance(event, Told | HostSaid):
        reason = live.heard(event) if isinstance(event, Told) else live.heard_host(event)
        group.excluded = live.excluded
    elif isinstance(event, WorkerExit):
        group.note(event)
        if event.code == 0 or group.has_stopped(event):
            reason = live.ended(event.rank)
            group.excluded = live.excluded
            return reason
        last, has_report = group.last_reading(event.rank), bool(load_reports(group.directory, [event.rank]))
        told = [group.last_reading(rank) for rank in group.ranks]
        reached = max(reading.done for reading in told), max(reading.saved for reading in told)
        place = last.step, last.replica
        reason = live.died(event.rank, event.code, place, has_report=has_report, reached=reached)
        group.excluded = live.excluded
        if not reason:  # nothing that it has started must hold what it held
            group.kill(event.rank, group.killed.get(event.rank, ""))
    return reason


def _tell(group: WorkerGroup, text: str) -> None:
    if group.spec.output != "quiet":
        tell(text)


def _tell_of_loners(group: WorkerGroup) -> None:
    """Say that workers which ended well have each trained the same thing, where it looks like that."""
    if group.spec.world_size == 1 or group.spec.output == "quiet":
        return
    if all(group.last_reading(rank).is_alone for rank in group.spec.ranks):
        tell(
            f"each of the {group.spec.world_size} workers has trained by itself: none has joined the others, none did "
            "a part of the work. Hint: unisono.Run() joins them, as torch.distributed.init_process_group() does; "
            "a program for one worker needs no -n."
        )


def _stopped(group: WorkerGroup) -> Stopped | None:
    """Judge workers that have all ended well."""
    steps = [group.last_reading(end.rank).done for end in group.exits.values() if group.has_stopped(end)]
    return Stopped(max(steps)) if steps else None


def _stop_between_steps(
    group: WorkerGroup, events: Events, asked: Signalled | Called, live: Recovery | None, control: Control
) -> Outcome:
    """Let a run that can do so stop after the step in progress; what `asked` stands for where not, or not in time."""
    if isinstance(asked, Called) and not asked.is_gentle:
        return Ended(asked.why, is_gentle=False)
    if any(reading.state != STEPPING for reading in group.readings().values()):
        return Ended(asked.why, is_gentle=True) if isinstance(asked, Called) else asked
    group.ask_stop()
    deadline = time.monotonic() + group.spec.stop_grace_s
    while (group.running or (live is not None and live.is_waiting)) and (event := next_event(events, deadline)):
        group.note(event)
        if live is not None:
            _heard(live, group, event)
            live.dismiss()
            _tend(live, group, control)
        # A closing terminal sends SIGHUP twice: that is no sign of impatience.
        if isinstance(event, Signalled) and event.signum != signal.SIGHUP:
            return Signalled(event.signum, is_final=True)
        if isinstance(event, Called) and not event.is_gentle:
            return Ended(event.why, is_gentle=False)
    counting = (end for rank, end in group.exits.items() if rank not in group.excluded)
    are_well = all(end.code == 0 or group.has_stopped(end) for end in counting)
    if not group.running and are_well:
        return _stopped(group)
    return Ended(asked.why, is_gentle=False) if isinstance(asked, Called) else Signalled(asked.signum, is_final=True)


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
    ended = [end.rank for end in group.exits.values() if end.code == 0]
    known = describe_kill(group.killed.get(root.rank, ""), count_kills() - memory_kills)
    message = describe(root, group.spec.world_size, ended, group.running, known)
    return Failed(WorkerFailed(message, rank=root.rank, exit_code=root.exit_code), _ending(group, root, message))


def _ending(group: WorkerGroup, root: Failure, message: str) -> Ending:
    told = _told(group)
    last, report = told[root.rank], root.report
    return Ending(
        rank=-1 if root.is_secondary or root.rank not in group.spec.ranks else root.rank,
        what=message.partition("\n")[0].rstrip(".:") + ".",
        step=last.step,
        done=max(reading.done for reading in told.values()),
        saved=max(reading.saved for reading in told.values()),
        replica=last.replica,
        samples=last.samples if last.replica >= 0 else (),
        error=report.type_name if report is not None and not report.is_secondary else "",
        is_final=report is not None and report.is_final,
    )


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


def _tell_what_is_kept(group: WorkerGroup) -> None:
    """Say how far an interrupted run came, and what goes on with it; nothing of programs in which no run lived."""
    told = [group.last_reading(rank) for rank in group.ranks]
    if not group.spec.again or not any(reading.pid for reading in told):
        return
    done, saved = max(reading.done for reading in told), max(reading.saved for reading in told)
    where = f"stopped at once, {done} steps were done" if done else "stopped before the first step"
    kept = f"the newest checkpoint is of step {saved}" if saved else "no checkpoint has been written"
    tell(f"{where}; {kept}. {'Go on' if saved else 'Begin anew'} with: {group.spec.again}")


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Hold a port that rank 0 can bind and nobody else is given: bound, reusable, not listening."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
