"""How an attempt of a launch has ended, and what is said of it.

In: the worker group, when nothing is waited for any more. Out: an `Outcome`, and words for people. Must not import
torch.
"""

from dataclasses import dataclass

from unisono.errors import LaunchError, WorkerFailed
from unisono.launchers.program_files import names_us
from unisono.launchers.spec import SAME_COMMAND, ScriptTarget
from unisono.launchers.supervision.failure import Failure
from unisono.launchers.supervision.restarts import Ending
from unisono.launchers.worker_group import OutputBroken, Signalled, WorkerGroup
from unisono.system.heartbeat import STOPPED, Reading
from unisono.system.messages import tell


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


def told_by(group: WorkerGroup) -> dict[int, Reading]:
    """Return what the workers have told, by rank, also those that have ended."""
    return {rank: group.last_reading(rank) for rank in group.ranks}


def in_words(outcome: Outcome) -> str:
    """Return how it ended in a few words."""
    if isinstance(outcome, Stopped):
        return f"stopped after step {outcome.step}, and saved"
    return "done" if outcome is None else "failed" if isinstance(outcome, Failed) else "stopped"


def tell_of_loners(group: WorkerGroup) -> None:
    """Say that workers which ended well have each trained the same thing, where it looks like that."""
    if group.spec.world_size == 1 or group.spec.output == "quiet":
        return
    if all(group.last_reading(rank).is_alone for rank in group.spec.ranks):
        tell(
            f"each of the {group.spec.world_size} workers has trained by itself: none has joined the others, none did "
            "a part of the work. Hint: unisono.Run() joins them, as torch.distributed.init_process_group() does; "
            "a program for one worker needs no -n."
        )


def stopped(group: WorkerGroup) -> Stopped | None:
    """Judge workers that have all ended well, or have saved and are at the end of their programs."""
    ranks = [*group.running, *(end.rank for end in group.exits.values() if group.has_stopped(end))]
    steps = [reading.done for rank in ranks if (reading := group.last_reading(rank)).state == STOPPED]
    return Stopped(max(steps)) if steps else None


def ending_of(group: WorkerGroup, root: Failure, message: str) -> Ending:
    """Return what a failure means for the restarts; `message` is what is said of it."""
    told = told_by(group)
    last, report, spec = told[root.rank], root.report, group.spec
    is_live_off = spec.live == "off" and spec.world_size > 1 and not spec.why_not_live
    everywhere = spec.world_size == 1 or len(root.alike) == spec.world_size
    is_alike = report is not None and report.is_mistake and everywhere and not any(one.done for one in told.values())
    return Ending(
        rank=-1 if root.is_secondary or root.rank not in spec.ranks else root.rank,
        what=message.partition("\n")[0].rstrip(".:") + ".",
        step=last.step,
        done=max(reading.done for reading in told.values()),
        saved=max(reading.saved for reading in told.values()),
        last=max(reading.last for reading in told.values()),
        replica=last.replica,
        samples=last.samples if last.replica >= 0 else (),
        error=report.type_name if report is not None and not report.is_secondary else "",
        is_final=report is not None and report.is_final,
        is_alike=is_alike,
        could_go_on_live=is_live_off and report is None and root.code < 0,  # exit codes and exceptions end all workers
    )


def tell_what_is_kept(group: WorkerGroup) -> None:
    """Say how far an interrupted run came, and what goes on with it; of programs too in which no run lived."""
    told = [group.last_reading(rank) for rank in group.ranks]
    if not group.spec.again:
        return
    if not any(reading.pid for reading in told):
        target = group.spec.target
        may_begin = not isinstance(target, ScriptTarget) or names_us(target.path)
        if may_begin and group.spec.again != SAME_COMMAND:  # a program that called launch() has the exception itself
            tell(f"stopped before a run began; this launch has saved nothing. Again: {group.spec.again}")
        return
    done, saved, last = (max(getattr(reading, name) for reading in told) for name in ("done", "saved", "last"))
    if last and done >= last and saved >= last:
        tell(f"stopped after the last step: all {last} steps are done and saved, the run is complete.")
        return
    where = f"stopped at once, {done} steps were done" if done else "stopped before the first step"
    kept = f"the newest checkpoint is of step {saved}" if saved else "this launch has written no checkpoint"
    tell(f"{where}; {kept}. {'Go on' if saved else 'Start again'} with: {group.spec.again}")
