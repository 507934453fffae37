"""Who belongs to a world whose workers may die: the launcher's side and a worker's side, pure.

In: deaths and what workers say. Out: orders to workers. Knows no process, no clock and no socket, so that every order
of events can be tried. The launcher decides alone; workers never vote.

A world has an *epoch*: 0 at the start, one more after every death. Members keep the number they were started with; none
is ever used again. After a death the launcher is in ``gather``: it calls the survivors to the next epoch (`Halt`), and
each freezes at its next meeting and says so. When all have, it is in ``form``: it tells all of them the new world
(`Form`); they meet there, and say that they are up: ``steady``. Another death meanwhile starts over with another epoch.

Meetings are numbered through all epochs. One that a single member has passed was begun by all, so all can complete it
from what lies in shared memory; nobody begins one after it has frozen. So the world is told the last meeting that
anybody has passed: up to there everybody goes on as if nothing had happened, and behind it nobody has done anything.
"""

from dataclasses import dataclass, replace
from typing import Literal, final


@dataclass(frozen=True, slots=True)
class Halt:
    """Freeze at your next meeting, and say so; `members` are to form the world of this epoch."""

    epoch: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """All have frozen: complete the meetings up to `passed`, then meet in the world of this epoch.

    Attributes:
        epoch: Of the world.
        members: Its members, ascending; a member's rank is its place among them.
        passed: The last meeting that a member has passed.
        offer: What its first member has offered to meet at.
    """

    epoch: int
    members: tuple[int, ...]
    passed: int
    offer: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """This cannot be gone on with: end all workers, and start them again from the last checkpoint."""

    reason: str


Order = Halt | Form | Leave
Phase = Literal["steady", "gather", "form", "left"]


@final
@dataclass(frozen=True, slots=True)
class Membership:
    """The launcher's side; every event returns the next state, and the orders to all members.

    An event that comes twice, or late, changes nothing.

    Attributes:
        members: Those that are not known to be dead, ascending.
        fewest: So many the world must have.
        epoch: Of the present world, or of the one that is being formed.
        phase: How far that is.
        passed: The last meeting that a member is known to have passed.
        ready: Members that have frozen for this epoch.
        up: Members that have met in it.
        offer: What the first member has offered to meet at.
        is_ending: Whether a member has ended well: its work cannot be taken over any more.
    """

    members: tuple[int, ...]
    fewest: int = 1
    epoch: int = 0
    phase: Phase = "steady"
    passed: int = 0
    ready: frozenset[int] = frozenset()
    up: frozenset[int] = frozenset()
    offer: str = ""
    is_ending: bool = False

    def died(self, member: int) -> tuple["Membership", tuple[Order, ...]]:
        """Take a death into account."""
        if self.phase == "left" or member not in self.members:
            return self, ()
        left = tuple(other for other in self.members if other != member)
        if self.is_ending:
            return self.give_up("a worker has ended already")
        if len(left) < self.fewest:
            return self.give_up(f"{len(left)} of at least {self.fewest} workers are left")
        called = replace(
            self, members=left, epoch=self.epoch + 1, phase="gather", ready=frozenset(), up=frozenset(), offer=""
        )
        return called, (Halt(called.epoch, left),)

    def heard_ready(
        self, epoch: int, member: int, *, passed: int, refusal: str = "", offer: str = ""
    ) -> tuple["Membership", tuple[Order, ...]]:
        """Take into account that a member has frozen for an epoch.

        Args:
            epoch: Which it was called to.
            member: Its number.
            passed: The last meeting that it has passed.
            refusal: Why it cannot go on; empty where it can.
            offer: Where the others may meet it.
        """
        if self.phase != "gather" or epoch != self.epoch or member not in self.members:
            return self, ()
        if refusal:
            return self.give_up(refusal)
        known = replace(
            self,
            ready=self.ready | {member},
            passed=max(self.passed, passed),
            offer=offer if member == self.members[0] else self.offer,
        )
        if len(known.ready) < len(known.members):
            return known, ()
        return replace(known, phase="form"), (Form(epoch, known.members, known.passed, known.offer),)

    def heard_up(self, epoch: int, member: int) -> tuple["Membership", tuple[Order, ...]]:
        """Take into account that a member has met the others in the world of an epoch."""
        if self.phase != "form" or epoch != self.epoch or member not in self.members:
            return self, ()
        known = replace(self, up=self.up | {member})
        return (replace(known, phase="steady") if len(known.up) == len(known.members) else known), ()

    def ended(self, member: int) -> tuple["Membership", tuple[Order, ...]]:
        """Take into account that a member has ended well."""
        if self.phase == "left" or member not in self.members:
            return self, ()
        if self.phase != "steady":
            return self.give_up("a worker has ended already")
        return replace(self, is_ending=True), ()

    def give_up(self, reason: str) -> tuple["Membership", tuple[Order, ...]]:
        """Leave for good; nothing that comes later changes that."""
        if self.phase == "left":
            return self, ()
        return replace(self, phase="left"), (Leave(reason),)


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

    @property
    def is_frozen(self) -> bool:
        """Whether it passes no meeting of its world any more by itself; so until it moves, whatever it hears.

        A worker is held by `LiveMember.at`, which does not return meanwhile; this is what the play of all orders asks.
        """
        return self.told > self.epoch

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
