"""What the supervisor's loop does for workers that may go on without one that has died.

In: events, one at a time. Out: what `live_recovery` and `live_hosts` decide about them, done: workers started, ended,
left out. Must not import torch.
"""

import functools

from unisono.launchers.control import Asked, Control
from unisono.launchers.supervision.channels import HostSaid, Told
from unisono.launchers.supervision.failure import WorkerExit, load_reports
from unisono.launchers.supervision.live_following import FollowingRecovery, Recovery
from unisono.launchers.supervision.live_hosts import DecidingRecovery, Relay
from unisono.launchers.supervision.live_recovery import LiveRecovery, off
from unisono.launchers.supervision.replacements import Replacements, numbers_of
from unisono.launchers.supervision.resizing import parse_sizes
from unisono.launchers.worker_group import Event, WorkerGroup
from unisono.system.messages import tell


def live_recovery(group: WorkerGroup, relay: Relay | None) -> Recovery | None:
    """Return what decides which deaths the others live through; None where they live through none."""
    spec = group.spec
    if group.channels is None:
        if spec.live == "auto" and spec.workers > 1:
            _tell(group, off(spec.why_not_live))
        return None
    send, told, sizes = group.channels.send, functools.partial(_tell, group), parse_sizes(spec.elastic)
    if relay is None:
        replacements = Replacements(spec.workers, spec.spares, spec.max_restarts)
        return LiveRecovery(spec.ranks, send, told, replacements, sizes, is_asked=not spec.is_live_usual)
    numbers = numbers_of(relay.node, relay.spans)
    replacements = Replacements(spec.workers, spec.spares, spec.max_restarts, numbers)
    side = DecidingRecovery if relay.node == relay.decider else FollowingRecovery
    return side(relay, send, told, replacements, sizes)


def tend(live: Recovery | None, group: WorkerGroup, control: Control) -> None:
    """Start the workers that are to join the others, end those that nobody needs, and listen to who wants others."""
    if live is None:
        return
    spec, placement = group.spec, group.spec.placement
    why_not = control.serve(live.place, placement.node_rank if placement else 0)
    if why_not and not spec.is_live_usual:
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


def take_in(live: Recovery, group: WorkerGroup, event: Event | None) -> str:
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
