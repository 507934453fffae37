"""What a loop that was left early has done: written at once, kept when it is known that no exception has left it.

A loop's body goes on behind `Run.step`: it evaluates, steps schedules, averages. If it fails there, a resumed run must
do it again, so that it goes on from an older checkpoint. When Python closes the loop's generator it does not tell
``break`` from an exception; the end of the run, or of the program, does.
"""

import atexit
import sys
from collections.abc import Callable
from typing import final

from unisono.errors import CheckpointError


@final
class EarlyEnd:
    """The last step of a loop that was left; most runs have none.

    Args:
        tell: Takes a line for the user.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._decide: Callable[[bool], None] | None = None
        self._after = 0
        self._unsaved: CheckpointError | None = None

    def begin(self, write: Callable[[], Callable[[bool], None]], *, after: int) -> None:
        """Write the step, and wait for `end`; of steps after `after` nothing is saved yet.

        Where that fails, it is said now, and raised by `close`: nobody would see what a generator raises at its end.
        """
        self._after = after
        try:
            self._decide = write()
        except CheckpointError as error:
            self._has_lost(error)
        else:
            atexit.register(self._at_exit)
        if sys.is_finalizing():
            self._at_exit()

    def end(self, *, is_failing: bool = False) -> None:
        """Keep the step, or drop it where its body has failed; nothing where none waits."""
        decide, self._decide = self._decide, None
        if decide is None:
            return
        atexit.unregister(self._at_exit)
        try:
            decide(not is_failing)
        except CheckpointError as error:
            self._has_lost(error)
        if is_failing:
            self._tell(
                f"keeps nothing of what came after step {self._after}: an exception has left the loop behind "
                "run.step(), and what the loop does there would be left out. A resumed run goes on from that step."
            )

    def close(self) -> None:
        """Raise the `CheckpointError` that was met, once, unless another exception is on its way up."""
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None and sys.exc_info()[1] is None:
            raise unsaved

    def _at_exit(self) -> None:
        self.end(is_failing=getattr(sys, "last_value", None) is not None)

    def _has_lost(self, error: CheckpointError) -> None:
        self._tell(f"has lost what came after step {self._after}: {error}")
        self._unsaved = error
