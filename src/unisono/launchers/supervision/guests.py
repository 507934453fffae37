"""The workers that a launcher starts in the places of those of its own that have died, and what it says of them.

In: how its workers die, and why none may join any more. Out: those that `Replacements` lets start and come; and those
that nobody needs. On several hosts each launcher has its own. Must not import torch.
"""

import signal
from collections.abc import Callable
from typing import final

from unisono.launchers.supervision.replacements import Replacements
from unisono.launchers.supervision.restarts import Ending


@final
class Guests:
    """One launcher's guests.

    Args:
        rule: Says which are started.
        tell: Takes what is worth knowing, in words.

    Attributes:
        unwanted: Ranks that are to be killed: nobody needs them.
    """

    def __init__(self, rule: Replacements, tell: Callable[[str], None]) -> None:
        self.rule, self._tell = rule, tell
        self.unwanted: set[int] = set()

    def refused(self, rank: int, why: str, *, is_short: bool) -> None:
        """Take into account that one does not fit; `is_short`: whether workers are missing."""
        self.unwanted.add(rank)
        self.dismiss(f"rank {rank} cannot join: {why}", is_short=is_short)

    def dismiss(self, why: str = "", *, is_short: bool = False) -> None:
        """Let nobody join any more."""
        if why and not self.rule.why_not:
            then = "The run goes on with fewer workers" if is_short else "Nobody takes the place of one that dies"
            self._tell(f"{why}. {then}.")
        self.unwanted |= {*self.rule.stop(why)}

    def lost(self, rank: int, ending: Ending) -> None:
        """Judge the death of a worker that had not joined."""
        if rank not in self.unwanted:
            self._tell(f"rank {rank} {ending.what} before it had joined the others.")
            self.judge(ending, has_joined=False)

    def judge(self, ending: Ending, *, has_joined: bool) -> None:
        """Let another one be started where a death allows it."""
        before = self.rule.why_not
        self.rule.died(ending, has_joined=has_joined)
        if self.rule.why_not != before:
            self._tell(f"No other worker is started in its place: {self.rule.why_not}.")


class HasGuests:
    """A launcher's side of live recovery, which has guests."""

    _guests: Guests

    @property
    def guests(self) -> set[int]:
        """Ranks of this host that have been started and are no members yet."""
        return {*self._guests.rule.guests}

    @property
    def unwanted(self) -> set[int]:
        """Ranks that are to be killed: nobody needs them."""
        return self._guests.unwanted


def death_of(
    code: int, place: tuple[int, int], reached: tuple[int, int], *, has_report: bool, how: str = ""
) -> Ending:  # fmt: skip
    """Return a worker's death as `Replacements` judges it; see `LiveRecovery.died`."""
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    what = how or (f"was killed by {name}" if code < 0 else f"has ended with code {code}")
    error = "an exception" if has_report or code >= 0 else ""
    return Ending(rank=-1, what=what, step=place[0], replica=place[1], done=reached[0], saved=reached[1], error=error)
