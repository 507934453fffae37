"""Who belongs to a world whose workers may die: a worker's side, pure; see `launchers/membership.py` for the whole.

In: orders of the launcher. Out: what to do at a meeting. Knows no process, no clock and no socket.
"""

from dataclasses import dataclass, replace
from typing import Literal, final

from unisono.launchers.membership import Form, Halt

Advice = Literal["go", "freeze", "wait", "complete", "move"]


@final
@dataclass(frozen=True, slots=True)
class Member:
    """A worker's side; an order that comes twice, or late, changes nothing.

    Attributes:
        number: Of this member.
        epoch: Of the world that it is in.
        passed: The last meeting that it has passed.
        called: The newest epoch that it has heard of.
        told: The last epoch that it has said it is ready for.
        world: Of the epoch it is called to, once it is known.
    """

    number: int
    epoch: int = 0
    passed: int = 0
    called: int = 0
    told: int = 0
    world: Form | None = None

    def hear(self, order: Halt | Form) -> "Member":
        """Take an order into account."""
        if isinstance(order, Halt) and order.epoch > self.called:
            return replace(self, called=order.epoch, world=None)
        if isinstance(order, Form) and order.epoch == self.called > self.epoch and self.world is None:
            return replace(self, world=order)
        return self

    def advise(self, meeting: int) -> Advice:
        """Say what to do at a meeting, or while waiting in it.

        ``go``: on. ``freeze``: begin none, and say that you are ready. ``wait``: for orders. ``complete``: it has been
        passed by others, go on without waiting. ``move``: meet in the new world.
        """
        if self.called == self.epoch:
            return "go"
        if self.told < self.called:
            return "freeze"
        if self.world is None:
            return "wait"
        return "complete" if meeting <= self.world.passed else "move"

    def froze(self) -> "Member":
        """Take into account that it says it is ready."""
        return replace(self, told=self.called)

    def has_passed(self, meeting: int) -> "Member":
        """Take into account that a meeting is over."""
        return replace(self, passed=max(self.passed, meeting))

    def moved(self) -> "Member":
        """Take into account that it goes to the new world."""
        assert self.world is not None
        return replace(self, epoch=self.world.epoch, passed=self.world.passed, world=None)
