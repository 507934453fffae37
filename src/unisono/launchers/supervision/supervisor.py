"""What the launcher does about silent workers and runs that stand still.

In: the crew and the findings of `vigil`. Out: messages, SIGCONT, SIGKILL. A stopped worker is first told to go on; one
that stays silent is killed where a restart may follow, and only reported where none may. A run that stands still
is reported, never killed: a long step is no fault, and a rank that never comes ends the others' wait by itself.
"""

import time
from typing import final

from unisono.launchers.output import tell
from unisono.launchers.supervision.liveness import Back, Silent, Still, Vigil
from unisono.launchers.supervision.stacks import describe_hang
from unisono.launchers.worker_group import Crew

_STATES = {
    "D": "it waits in the kernel and cannot be interrupted (state D): look at its disk or network file system",
    "T": "it has been stopped (state T)",
    "t": "a debugger holds it (state t)",
}
_BUSY = "its threads cannot get the interpreter's lock: native code holds it, or it is deadlocked"


@final
class Watchman:
    """Looks after the workers of one attempt.

    Attributes:
        unkillable: A rank that does not even end after SIGKILL, else None.
    """

    def __init__(self, crew: Crew) -> None:
        self.unkillable: int | None = None
        self._crew = crew
        self._is_quiet = crew.spec.output == "quiet"
        self._vigil = Vigil(crew.spec.heartbeat_s, crew.spec.hang_s)

    def look(self) -> None:
        """Look at all workers, and act; quick while all is well."""
        for finding in self._vigil.look(time.monotonic(), self._crew.readings()):
            if isinstance(finding, Silent):
                self._treat(finding)
            elif isinstance(finding, Back):
                self._tell(f"rank {finding.rank} is back after {finding.seconds:.1f} s of silence.")
            else:
                self._report(finding)

    def _treat(self, silent: Silent) -> None:
        crew, rank = self._crew, silent.rank
        state = crew.process_state(rank)
        what = f"rank {rank} has shown no sign of life for {silent.seconds:.0f} s: {_STATES.get(state, _BUSY)}"
        if rank in crew.killed:
            self.unkillable = rank
        elif state == "T" and silent.count == 1:
            self._tell(f"{what}; it is told to go on (SIGCONT).")
            crew.wake(rank)
        else:
            frames = [] if state in _STATES else crew.stacks([rank])[rank]
            stack = "".join(f"\n    {frame}" for frame in frames)
            if crew.spec.max_restarts == 0:
                self._tell(f"{what}. Hint: --max-restarts lets the launcher replace such workers.{stack}")
                return
            self._tell(f"{what}; it is killed.{stack}")
            crew.kill(rank, f"by its launcher: {what}.")

    def _report(self, still: Still) -> None:
        readings = self._crew.readings()
        self._tell(describe_hang(still.seconds, readings, self._crew.stacks(list(readings))))

    def _tell(self, text: str) -> None:
        if not self._is_quiet:
            tell(text)
