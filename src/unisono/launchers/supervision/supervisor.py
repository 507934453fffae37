"""What the launcher does about silent workers and runs that stand still.

In: the worker group and what `liveness` finds. Out: messages, SIGCONT, SIGKILL. A stopped worker is first told to go
on; one that stays silent is killed where a restart may follow or the others can go on without it, else only reported.
A run that stands still is reported, never killed: a long step is no fault, and a rank that never comes ends the others'
wait by itself.
"""

import time
from typing import final

from unisono.launchers.supervision.live_following import Recovery
from unisono.launchers.supervision.liveness import Back, Liveness, Silent, Still
from unisono.launchers.supervision.stacks import describe_hang, waits_in_vain
from unisono.launchers.worker_group import WorkerGroup
from unisono.system.messages import tell

_STATES = {
    "D": "it waits in the kernel and cannot be interrupted (state D): look at its disk or network file system",
    "T": "it has been stopped (state T)",
    "t": "a debugger holds it (state t)",
}
_BUSY = "its threads cannot get the interpreter's lock: native code holds it, or it is deadlocked"


@final
class Supervisor:
    """Looks after the workers of one attempt."""

    def __init__(self, group: WorkerGroup, live: Recovery | None = None) -> None:
        self.unkillable: int | None = None  #: A rank that does not even end after SIGKILL, else None.
        self._group, self.live = group, live
        self._is_quiet = group.spec.output == "quiet"
        self._liveness = Liveness(group.spec.heartbeat_s, group.spec.hang_s)
        self._of_guests = Liveness(group.spec.heartbeat_s, hang_s=0)  # they wait, and may do so for ever

    def look(self) -> None:
        """Look at all workers, and act; quick while all is well."""
        now, guests = time.monotonic(), self._group.readings(of_guests=True)
        for finding in (*self._liveness.look(now, self._group.readings()), *self._of_guests.look(now, guests)):
            if isinstance(finding, Silent):
                self._treat(finding)
            elif isinstance(finding, Back):
                self._tell(f"rank {finding.rank} is back after {finding.seconds:.1f} s of silence.")
            else:
                self._tell_hang(finding)

    def _tell_hang(self, still: Still) -> None:
        """Say where all workers are; early only where they surely wait in vain: those of one host see all others."""
        group, readings = self._group, self._group.readings()
        stacks = group.stacks(list(readings))
        ended = {rank: group.last_reading(rank) for rank, end in group.exits.items() if end.code == 0}
        if not still.is_early or (group.spec.placement is None and waits_in_vain(stacks)):
            self._tell(describe_hang(still.seconds, readings, stacks, ended))

    def _treat(self, silent: Silent) -> None:
        group, rank = self._group, silent.rank
        state = group.process_state(rank)
        what = f"rank {rank} has shown no sign of life for {silent.seconds:.0f} s: {_STATES.get(state, _BUSY)}"
        if rank in group.killed:
            self.unkillable = rank
        elif state == "T" and silent.count == 1:
            self._tell(f"{what}; it is told to go on (SIGCONT).")
            group.wake(rank)
        else:
            frames = [] if state in _STATES else group.stacks([rank])[rank]
            stack = "".join(f"\n    {frame}" for frame in frames)
            if group.spec.max_restarts == 0 and (self.live is None or not self.live.can_lose(rank)):
                self._tell(f"{what}. Hint: --max-restarts lets the launcher replace such workers.{stack}")
                return
            self._tell(f"{what}; it is killed.{stack}")
            group.kill(rank, f"by its launcher: {what}.")

    def _tell(self, text: str) -> None:
        if not self._is_quiet:
            tell(text)
