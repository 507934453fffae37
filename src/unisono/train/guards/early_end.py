"""What a loop that was left early has done: kept at once after ``break``, else where it is known that nothing failed.

A loop's body goes on after `Run.step`: it evaluates, steps schedules, averages. If it fails there, a resumed run must
do it again, so that it goes on from an older checkpoint. When Python closes the loop's generator, it does not say why.
"""

import dis
import inspect
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import final

from unisono.errors import CheckpointError, PeerLost

_POPS = ("POP_TOP", "POP_ITER", "END_FOR")  # what ``break`` and ``return`` let go of a loop's iterator with


def is_broken_off(frame: FrameType | None) -> bool:
    """Whether a generator is closed by a ``break`` or ``return`` out of the loop over it, surely.

    Args:
        frame: That of the generator; what passes its items on (other generators) may stand between it and the loop.
    """
    outer = None if frame is None else frame.f_back
    while outer is not None:
        if dis.opname[outer.f_code.co_code[outer.f_lasti]] in _POPS:
            return True
        if not outer.f_code.co_flags & inspect.CO_GENERATOR and outer.f_globals.get("__name__") != "contextlib":
            return False
        outer = outer.f_back
    return False


@final
class EarlyEnd:
    """The last step of a loop that was left; most runs have none.

    Where nobody decides before it is gone, the step is dropped: a draft, which the next launch clears away.

    Args:
        where: The run directory, on the leader, who tells what is dropped.
    """

    def __init__(self, where: Path | None) -> None:
        self._where = where
        self._decide: Callable[[bool], None] | None = None
        self._tell_dropped: weakref.finalize[..., EarlyEnd] | None = None
        self._after = 0
        self._unsaved: CheckpointError | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a step is written, and neither kept nor dropped."""
        return self._decide is not None

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
            self._tell_dropped = weakref.finalize(self, _tell_dropped, self._where, after)

    def end(self, error: BaseException | None = None) -> None:
        """Keep the step, or drop it where its body has failed with `error`; nothing where none waits."""
        decide, told = self._decide, self._tell_dropped
        self._decide = self._tell_dropped = None
        if decide is None or told is None:
            return
        told.detach()
        if error is not None and not isinstance(error, CheckpointError):  # which says itself what there is
            _tell_dropped(self._where, self._after, error)
        try:
            decide(error is None)
        except CheckpointError as error:
            self._has_lost(error)

    def close(self) -> None:
        """Raise the `CheckpointError` that was met, once, unless another exception is on its way up."""
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None and sys.exc_info()[1] is None:
            raise unsaved

    def _has_lost(self, error: CheckpointError) -> None:
        _tell(self._where, f"has lost what came after step {self._after}: {error}")
        self._unsaved = error


def _tell(where: Path | None, text: str) -> None:
    if where is not None:
        sys.stderr.write(f"unisono: {where} {text}\n")


def _tell_dropped(where: Path | None, after: int, error: BaseException | None = None) -> None:
    """Say what is not kept, and why: because of an error; None: nobody knows of one."""
    cause = (
        "the loop ended after run.step() by an exception (its own, or because another rank has gone), or nobody has "
        "closed the run"
    )
    hint = " Hint: `with unisono.Run(...) as run:` keeps it where nothing has failed."
    if error is not None:
        what = "another rank has gone" if isinstance(error, PeerLost) else "an exception has ended the loop"
        cause, hint = f"{what} after run.step() ({type(error).__name__})", ""
    _tell(
        where,
        f"keeps nothing of what came after step {after}: {cause}, and the rest of the loop's body was not done. "
        f"A resumed run goes on from that step.{hint}",
    )
