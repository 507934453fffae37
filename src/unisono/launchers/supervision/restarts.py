"""When to start the workers again: a pure rule over how the attempts before have ended.

In: the `Ending` of each attempt, in order. Out: `Again` with the slots to use, or `GiveUp` with the reason. Knows no
process and no clock, so that every case can be tried at once.
"""

from dataclasses import dataclass, field
from typing import final

from unisono.errors import ScoreMismatch

_SLOT_FAILURES = 2
_NUM_SHOWN = 16
ANYWHERE = "from the last checkpoint, if there is one"
"""From where workers start again, where nobody knows whether anything was saved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How one attempt ended."""

    rank: int  #: The rank that failed first; -1 where all only blame each other.
    what: str  #: A few words on how.
    step: int = 0  #: The step (1-based) in progress in that worker; 0 before the first.
    done: int = 0  #: The last step that any worker has finished, 0 for none.
    saved: int = 0  #: The step of the newest checkpoint, 0 for none.
    last: int = 0  #: The step that is to be the last, 0 while it is not known.
    replica: int = -1  #: The replica that the worker was computing, -1 when unknown.
    samples: tuple[int, ...] = ()  #: Its samples' indices, as far as they are known.
    error: str = ""  #: Type of the exception that ended it; empty for a death without one.
    is_final: bool = False  #: Whether the same program on the same data must fail again, as with a wrong setting.
    is_alike: bool = False  #: Whether all workers met the same mistake in the program, before the first step.
    is_unkillable: bool = False  #: Whether a worker could not be ended, so that a second one beside it would be unsafe.
    could_go_on_live: bool = False  #: Whether live recovery, which is off, may go on after a death of this kind.


@dataclass(frozen=True, slots=True)
class Again:
    """Start the workers again."""

    slots: tuple[int, ...]  #: Slots to use, ascending; a slot is a local rank of the first attempt.
    dropped: int | None = None  #: The slot that is not used any more, if one has just been given up.


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Start nothing any more."""

    reason: str  #: Where restarts were not asked for: how to go on; empty where nobody knows.


@final
@dataclass(slots=True)
class Restarts:
    """The rule with its memory.

    An attempt makes progress when it finishes a step, or commits a checkpoint, that no attempt before has. A restart
    after progress is free; `max_restarts` counts those in a row without. Among these, a slot that fails twice running
    is given up while others are left: the run goes on with fewer workers. An exception that comes twice at the same
    step is the program's own.
    """

    max_restarts: int
    workers: int
    slots: tuple[int, ...] = ()
    sees_all: bool = (
        True  #: Whether the endings tell what all workers have said, not only those of one of several hosts.
    )
    num_restarts: int = 0
    num_without_progress: int = 0
    _best: tuple[int, int] = (0, 0)
    _last: Ending | None = None
    _failing: list[int | None] = field(default_factory=list)  # slots that failed last, without progress

    def __post_init__(self) -> None:
        self.slots = self.slots or tuple(range(self.workers))

    def spent(self) -> str:
        """Return how many of the restarts that are allowed are gone, in brackets; nothing where none is."""
        spent = f" ({self.num_without_progress} of {self.max_restarts} restarts without progress)"
        return spent * (self.num_without_progress > 0)

    def judge(self, ending: Ending) -> Again | GiveUp:
        """Take one attempt's ending into account and say what to do."""
        if self.max_restarts == 0:
            return GiveUp(_how_to_go_on(ending, sees_all=self.sees_all))
        if ending.is_unkillable:
            return GiveUp("No restart: a worker cannot be killed and might write beside its successor.")
        if ending.is_final:
            return GiveUp("No restart: the same program would fail again.")
        if ending.is_alike:
            who = "every worker has met it" if self.workers > 1 else "it came"
            return GiveUp(f"No restart: {who} before the first step, so the same program would fail again.")
        last, self._last = self._last, ending
        best = (max(self._best[0], ending.done), max(self._best[1], ending.saved))
        if best != self._best:
            self._best, self.num_without_progress = best, 0
            self._failing.clear()
        else:
            self.num_without_progress += 1
            self._failing.append(self.slots[ending.rank] if ending.rank >= 0 else None)
            if last is not None and ending.error and (last.error, last.step) == (ending.error, ending.step):
                return GiveUp(f"No restart: {ending.error} has come twice {_place(ending)}.")
        if self.num_without_progress > self.max_restarts:
            return GiveUp(
                f"{self.max_restarts} restarts in a row made no progress (--max-restarts); the last attempt ended "
                f"{_place(ending)}{_samples(ending)}. Hint: remove the cause; the same command starts {self.start}."
            )
        self.num_restarts += 1
        dropped = self._drop(ending)
        return Again(self.slots, dropped)

    @property
    def start(self) -> str:
        """From where the workers start again, in words; what the attempts judged so far have told is all that is known.

        One that ends before its first step says nothing of checkpoints that earlier launches have left; nor do workers
        of a host other than the leader's say what the leader has saved.
        """
        if self._best[1]:
            return "from the last checkpoint"
        has_begun = self.sees_all and (self._best[0] or (self._last is not None and self._last.step))
        return "from the beginning: no checkpoint has been written" if has_begun else ANYWHERE

    def _drop(self, ending: Ending) -> int | None:
        """Give up the slot that has failed too often, if it is the slot's fault for all we know; returns it."""
        if len(self.slots) == 1 or ending.error or ending.rank < 0:
            return None
        slot = self.slots[ending.rank]
        if self._failing[-_SLOT_FAILURES:] != [slot] * _SLOT_FAILURES:
            return None
        self._failing.clear()
        self.slots = tuple(other for other in self.slots if other != slot)
        return slot


def _how_to_go_on(ending: Ending, *, sees_all: bool) -> str:
    if ending.is_unkillable or ending.error == ScoreMismatch.__name__:  # of another run
        return ""
    by_itself = "With --max-restarts 3 (max_restarts=3) it does so by itself"
    live = ", with --live auto without going back" if ending.could_go_on_live else ""
    if not ending.saved:
        if not ending.done or ending.error or ending.is_final or not sees_all:
            return ""
        first = "Hint: no checkpoint has been written; the same command starts from the beginning"
        return f"{first}. {by_itself}{live}."
    # A later one may have been committed since the last step that was told of.
    later = " or later" if ending.done > ending.saved else ""
    first = f"Hint: the newest checkpoint is of step {ending.saved}{later}; the same command goes on from there"
    if ending.last and ending.saved >= ending.last:
        first = f"Hint: all {ending.last} steps are done and saved; the same command does what comes after them"
    if ending.error or ending.is_final:
        return f"{first}, once the cause is removed."
    return f"{first}. {by_itself}{live}."


def _place(ending: Ending) -> str:
    if ending.step == 0:
        return "before the first step"
    return f"in step {ending.step}" + (f", replica {ending.replica}" if ending.replica >= 0 else "")


def _samples(ending: Ending) -> str:
    if not ending.samples:
        return ""
    shown = ", ".join(map(str, ending.samples[:_NUM_SHOWN]))
    return f" (samples {shown}{', ...' if len(ending.samples) > _NUM_SHOWN else ''})"
