"""Who belongs to a world whose workers may die: the launcher's side, pure; a worker's is in `worker/member.py`.

In: deaths and what workers say. Out: orders to workers. Knows no process, no clock and no socket, so that every order
of events can be tried. The launcher decides alone; workers never vote.

A world has an *epoch*: 0 at the start, one more after every death. Members keep the number they were started with; none
is ever used again. After a death the launcher is in ``gather``: it calls the survivors to the next epoch (`Halt`), and
each freezes at its next meeting and says so. When all have, it is in ``form``: it tells all of them the new world
(`Form`); they meet there, and say that they are up: ``steady``. Another death meanwhile starts over with another epoch.

Meetings are numbered through all epochs. One that a single member has passed was begun by all, so all can complete it
from what lies in shared memory; nobody begins one after it has frozen. So the world is told the last meeting that
anybody has passed: up to there everybody goes on as if nothing had happened, and behind it nobody has done anything.

A member that has finished its steps says which meeting was its last, and comes to none any more: nobody waits for it.

Others join between two steps. A *guest* that is ready to join is announced to the members (`Knock`). They agree in a
step that they have heard of it, and each comes to the *door* behind that step and waits. When all are there they are
called as after a death, with the guests among them; so all leave their world at the door. Guests have nothing that the
step needs until a member has given it to them: where all others die meanwhile, it cannot be gone on with.
Where there are more members than there are to be, those that came last are released at the door: all have finished the
same step there, and the others are called without them.

On several hosts the first member is one of the launcher's own host, which has what the others need: it keeps the run's
files, and only of such a worker the launcher knows for sure that it is dead. So members are ordered whenever they are
called: those of other hosts behind, and behind them who has nothing to give yet. Whoever is first stays so.
"""

import sys
from dataclasses import dataclass, replace
from typing import Literal, final


@dataclass(frozen=True, slots=True)
class Halt:
    """Freeze at your next meeting, and say so; `members` are to form the world of this epoch, `released` may end."""

    epoch: int
    members: tuple[int, ...]
    released: tuple[int, ...] = ()
    is_door: bool = False  #: As in `Form`.


@dataclass(frozen=True, slots=True)
class Knock:
    """Others are ready to join, or some are to leave: agree on a step, and come to the door behind it."""


@dataclass(frozen=True, slots=True)
class Form:
    """All have frozen: complete the meetings up to `passed`, then meet in the world of this epoch.

    Attributes:
        epoch: Of the world.
        members: Its members, by rank.
        passed: The last meeting that a member has passed.
        offer: What its first member has offered to meet at.
        is_door: Whether all members were at the door: nobody has to wait there any more.
    """

    epoch: int
    members: tuple[int, ...]
    passed: int
    offer: str = ""
    is_door: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """This cannot be gone on with: end all workers, and start them again from the last checkpoint."""

    reason: str


Order = Halt | Form | Knock | Leave
Phase = Literal["steady", "gather", "form", "left"]


@final
@dataclass(frozen=True, slots=True)
class Membership:
    """The launcher's side; every event returns the next state, and the orders to all members.

    An event that comes twice, or late, changes nothing.

    Attributes:
        members: Those that are not known to be dead, in the order of their ranks.
        fewest: So many the world must have.
        most: So many it is to have: members that came later leave behind a step, and no guest is let in.
        epoch: Of the present world, or of the one that is being formed.
        phase: How far that is.
        passed: The last meeting that a member is known to have passed.
        ready: Members that have frozen for this epoch.
        up: Members that have met in it.
        offer: What the first member has offered to meet at.
        finished: Members that come to no meeting any more.
        left_out: Those of them that the present world was formed without.
        is_ending: Whether a member has ended that had not finished: its work cannot be taken over any more.
        guests: Those that are ready to join, ascending.
        new: Members that have not got yet what the others have.
        at_door: Members that wait to be called with the guests.
        is_door: Whether the world that is being formed was called by them.
        far: Workers of other hosts.
    """

    members: tuple[int, ...]
    fewest: int = 1
    most: int = sys.maxsize
    epoch: int = 0
    phase: Phase = "steady"
    passed: int = 0
    ready: frozenset[int] = frozenset()
    up: frozenset[int] = frozenset()
    offer: str = ""
    finished: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()
    is_ending: bool = False
    guests: tuple[int, ...] = ()
    new: frozenset[int] = frozenset()
    at_door: frozenset[int] = frozenset()
    is_door: bool = False
    far: frozenset[int] = frozenset()

    @property
    def active(self) -> tuple[int, ...]:
        """Members that still come to meetings, in their order."""
        return tuple(member for member in self.members if member not in self.finished)

    def died(self, member: int) -> tuple["Membership", tuple[Order, ...]]:
        """Take a death into account."""
        if self.phase == "left" or member not in (*self.members, *self.guests):
            return self, ()
        if member in self.guests:
            return replace(self, guests=tuple(other for other in self.guests if other != member)), ()
        members = tuple(other for other in self.members if other != member)
        left = replace(self, members=members, new=self.new - {member}, at_door=frozenset())
        if member in self.finished:
            return self.give_up("its steps were over")
        if self.is_ending:
            return self.give_up("a worker has ended already")
        if len(left.members) < self.fewest:
            return self.give_up(f"{len(left.members)} of at least {self.fewest} workers are left")
        if not left.active:  # whatever they have met for has been done
            return replace(left, phase="steady"), ()
        if left.new >= {*left.active}:
            return self.give_up("no worker is left that has the state")
        if left.new >= {*left.members} - self.far:
            return self.give_up("no worker is left on the deciding host")
        return left._call(self.active[0])

    def invite(self, guest: int, *, is_far: bool = False) -> tuple["Membership", tuple[Order, ...]]:
        """Let another one join, which is ready for it; `is_far`: it is on another host."""
        if self.phase == "left" or guest in (*self.members, *self.guests):
            return self, ()
        far = self.far | {guest} if is_far else self.far
        invited = replace(self, guests=tuple(sorted((*self.guests, guest))), far=far)
        return invited, invited._knock()

    def resize(self, most: int) -> tuple["Membership", tuple[Order, ...]]:
        """Let the world have at most so many members."""
        if self.phase == "left" or most == self.most:
            return self, ()
        resized = replace(self, most=most)
        return resized, resized._knock()

    def came_to_door(self, epoch: int, member: int) -> tuple["Membership", tuple[Order, ...]]:
        """Take into account that a member of the world of an epoch waits at the door."""
        if self.phase not in ("steady", "form") or epoch != self.epoch or member not in self.active:
            return self, ()
        if member in self.at_door:
            return self, ()
        return replace(self, at_door=self.at_door | {member})._went_on()

    def has_state(self, member: int) -> tuple["Membership", tuple[Order, ...]]:
        """Take into account that a member has got what the others have."""
        return replace(self, new=self.new - {member}), ()

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
            offer=offer if member == self.active[0] else self.offer,
        )
        return known._went_on()

    def heard_up(self, epoch: int, member: int) -> tuple["Membership", tuple[Order, ...]]:
        """Take into account that a member has met the others in the world of an epoch."""
        if self.phase != "form" or epoch != self.epoch or member not in self.members:
            return self, ()
        return replace(self, up=self.up | {member})._went_on()

    def has_finished(self, member: int, passed: int) -> tuple["Membership", tuple[Order, ...]]:
        """Take into account that a member comes to no meeting any more.

        Args:
            member: Its number.
            passed: The last meeting that it has passed.
        """
        if self.phase == "left" or member not in self.active:
            return self, ()
        return replace(self, finished=self.finished | {member}, passed=max(self.passed, passed))._went_on()

    def begins_again(self, member: int) -> tuple["Membership", tuple[Order, ...]]:
        """Take into account that a member which had finished comes to meetings again."""
        if self.phase == "left" or member not in self.finished:
            return self, ()
        if member in self.left_out or self.phase != "steady":
            return self.give_up("a worker that had finished has begun other steps")
        return replace(self, finished=self.finished - {member}), ()

    def ended(self, member: int) -> tuple["Membership", tuple[Order, ...]]:
        """Take into account that a member has ended well."""
        if self.phase == "left" or member not in self.active:
            return self, ()
        if self.phase != "steady":
            return self.give_up("a worker has ended already")
        return replace(self, is_ending=True), ()

    def _went_on(self) -> tuple["Membership", tuple[Order, ...]]:
        """Go to the next phase where nobody is waited for any more."""
        active = {*self.active}
        if self.phase == "gather" and active <= self.ready:
            formed = replace(self, phase="form" if active else "steady", left_out=self.finished)
            form = Form(self.epoch, self.active, self.passed, self.offer, self.is_door)
            return formed, (form,) if active else ()
        if self.phase == "form" and active <= self.up:
            steady, orders = replace(self, phase="steady", is_door=False)._went_on()
            return steady, orders or steady._knock()
        if self.phase == "steady" and active and active <= self.at_door:
            return self._changed_at_door()
        return self, ()

    def _changed_at_door(self) -> tuple["Membership", tuple[Order, ...]]:
        """Call those that stay, and guests where there is room; release the others."""
        released, room = self.active[self.most :], max(0, self.most - len(self.active))
        come = self.guests[:room]
        stay = tuple(member for member in (*self.members, *come) if member not in released)
        changed = replace(self, members=stay, new=self.new | {*come}, guests=self.guests[room:], is_door=True)
        return changed._call(self.active[0], released)

    def _knock(self) -> tuple[Order, ...]:
        lacks = self.most - len(self.active) if self.phase == "steady" else 0
        return (Knock(),) if lacks < 0 or (lacks > 0 and self.guests) else ()

    def _call(self, first: int, released: tuple[int, ...] = ()) -> tuple["Membership", tuple[Order, ...]]:
        """Call all members to the next epoch; `first`: who has been their first one."""
        nobody = frozenset[int]()
        called = replace(self, epoch=self.epoch + 1, phase="gather", ready=nobody, up=nobody, at_door=nobody, offer="")
        called = replace(called, members=self._ordered(first))
        return called, (Halt(called.epoch, called.active, released, called.is_door),)

    def _ordered(self, first: int) -> tuple[int, ...]:
        """Return the members in the order of their ranks; else as before, who joins last."""
        return tuple(sorted(self.members, key=lambda one: (one != first, one in self.new, one in self.far)))

    def give_up(self, reason: str) -> tuple["Membership", tuple[Order, ...]]:
        """Leave for good; nothing that comes later changes that."""
        if self.phase == "left":
            return self, ()
        return replace(self, phase="left"), (Leave(reason),)
