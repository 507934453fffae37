"""The launcher's side of live recovery: a worker dies, the others finish the step without it, and another one joins.

In: how workers end, and what they say over their sockets. Out: orders to them, as `membership.Membership` decides,
whether a death is theirs to live through, and which workers are to be started for those that have died, as
`Replacements` decides. Where it is not, everything is as without: an attempt ends, and a restart may follow. Must not
import torch.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from unisono.launchers.control import Asked
from unisono.launchers.membership import Form, Halt, Knock, Leave, Membership, Order
from unisono.launchers.supervision.channels import HostSaid, Told
from unisono.launchers.supervision.guests import Guests, HasGuests, death_of
from unisono.launchers.supervision.replacements import Replacements
from unisono.launchers.supervision.resizing import NONE_STARTED, Resizing, ranks_of, why_refused
from unisono.launchers.supervision.restarts import Ending
from unisono.system.words import counted

# Until the others have frozen, and until they have met: one may be in the midst of a long step, or of code between
# steps; as long as ranks wait for one that lives.
_GATHER_S = 300.0


class LiveRecovery(HasGuests):
    """Decides which deaths the others live through, and who joins them.

    Args:
        ranks: Of the workers; their numbers as members.
        send: Takes a rank and a message for it.
        tell: Takes what is worth knowing, in words.
        replacements: Says which workers are started for others; None: none is.
        sizes: The least and the most workers that there may be; the most 0: as many as there are replicas.
        is_asked: Whether somebody has asked for it, and so is told at once where it cannot be.

    Attributes:
        wanted: How many workers there are to be.
        place: The run directory, once it is known that the run can be resized; else empty.
        excluded: Ranks whose deaths have been lived through, or have never mattered.
    """

    def __init__(
        self, ranks: range, send: Callable[[int, dict[str, Any]], None], tell: Callable[[str], None],
        replacements: Replacements | None = None, sizes: tuple[int, int] = (1, 0), *, is_asked: bool = True,
    ) -> None:  # fmt: skip
        self._send, self._tell, self._is_asked = send, tell, is_asked
        self.wanted, self._sizes, self.place = len(ranks), sizes, ""
        self._members = Membership(tuple(ranks), sizes[0], self.wanted)
        self._asked: Resizing | None = None
        self._released: set[int] = set()
        self._replacements = replacements or Replacements(len(ranks))
        self._guests = Guests(self._replacements, tell)
        self._open: set[int] = set()
        self._why_not, self._has_left = "", False
        self._deadline = self._lost_s = 0.0
        self._pending: set[int] = set()
        self._places: dict[int, tuple[int, int]] = {}  # of deaths, by rank
        self._dead = ""  # who has just died, and how, until that is said
        self.excluded: set[int] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to wait for when all workers of this host have ended."""
        return False

    @property
    def heir(self) -> "LiveRecovery":
        """What takes the events in from now on: this."""
        return self

    @property
    def is_forming(self) -> bool:
        """Whether a world is being formed."""
        return self._members.phase in ("gather", "form") or bool(self._members.at_door)

    def start(self) -> list[int]:
        """Return the ranks that are to be started now; each once."""
        is_over = self._members.phase == "left" or self._members.is_ending
        return [] if is_over else self._replacements.start(self._count(self._members.members))

    def _is_own(self, rank: int) -> bool:
        """Whether a worker is on this host; its launcher alone starts others for it."""
        return True

    def _count(self, ranks: Iterable[int]) -> int:
        return sum(map(self._is_own, ranks))

    def heard_host(self, said: HostSaid) -> str:
        """Take in what another launcher says; returns as `heard`."""
        return ""

    def heard(self, told: Told) -> str:
        """Take in what a worker says; return why it cannot be gone on with, empty where it can."""
        rank, message = told.rank, told.message
        if rank in self._released:
            return ""
        if "open" in message:
            return self._heard_open(rank, message)
        if "arrived" in message:
            self._replacements.ready(rank)
            return self._invite()
        if "refused" in message:
            self._guests.refused(rank, message["refused"], is_short=self._is_short())
        if "door" in message:
            self._deadline = self._deadline if self.is_forming else time.monotonic() + _GATHER_S
            return self._do(self._members.came_to_door(message["door"], rank))
        if "finished" in message:
            return self._do(self._members.has_finished(rank, message["finished"]))
        if "ready" in message:
            known = {name: message[name] for name in ("passed", "refusal", "offer")}
            return self._do(self._members.heard_ready(message["ready"], rank, **known))
        return self._do(self._members.heard_up(message["up"], rank)) if "up" in message else ""

    def _heard_open(self, rank: int, message: dict[str, Any]) -> str:
        (self._open.add if message["open"] else self._open.discard)(rank)
        self._has_left |= not message["open"] and not message["why"]
        if message["why"] and not self._why_not:
            self._why_not = message["why"]
            if self._is_asked:
                self._tell(off(self._why_not))
            self.dismiss()
        if message["open"] and "replicas" in message:
            self.place = message["directory"]
            self._sizes = self._sizes[0], min(self._sizes[1] or message["replicas"], message["replicas"])
        if not message["open"]:
            return self._leave("a worker has left its steps early") if self.is_forming else ""
        if rank in self._members.new:
            if self._is_own(rank):
                self._replacements.joined()
            count, seconds = len(self._members.active), time.monotonic() - self._lost_s
            since = "it was asked for" if self._asked else "a death"
            self._tell(f"rank {rank} has joined the others, {seconds:.1f} s after {since}: {count} workers.")
            return self._do(self._members.has_state(rank))
        return self._do(self._members.begins_again(rank))

    def ended(self, rank: int) -> str:
        """Take into account that a worker has ended well; returns as `heard`."""
        if rank in self._released:
            return ""
        if rank in (*self._replacements.guests, *self._members.new):
            return self.died(rank, 0, (0, -1), has_report=False)
        self.dismiss()
        return self._do(self._members.ended(rank))

    def dismiss(self, why: str = "") -> None:
        """Let nobody join any more."""
        self._guests.dismiss(why, is_short=self._is_short())

    def _is_short(self) -> bool:
        return len(self._members.active) < self.wanted

    def died(
        self, rank: int, code: int, place: tuple[int, int], *, has_report: bool, reached: tuple[int, int] = (0, 0),
        how: str = "",
    ) -> str:  # fmt: skip
        """Take a death into account.

        Args:
            rank: Whose.
            code: Exit code; -n for signal n.
            place: The step that it was in, and the replica that it was computing; -1 where unknown.
            has_report: Whether it has left the report of an exception.
            reached: The last step that any worker has finished, and that of the newest checkpoint.
            how: What has become of it, in words; empty: what the code says.

        Returns:
            Why the others cannot go on without it; empty where they can.
        """
        ending = death_of(code, place, reached, has_report=has_report, how=how)
        if rank in self._released:
            if code > 0:
                self._tell(f"rank {rank}, which had left, {ending.what}.")
            return ""
        is_guest, is_new = rank in {*self._replacements.guests, *self._members.guests}, rank in self._members.new
        if is_guest:
            self._replacements.became_member(rank)
            self.excluded.add(rank)
            self._do(self._members.died(rank))
            self._replace(rank, ending)
            return ""
        others = [member for member in self._members.active if member != rank]
        self._dead = f"rank {rank} {ending.what}" + (f" in step {ending.step}" if ending.step > 0 else "")
        if ending.error and not is_new:
            # The same error would come to every rank that takes over.
            return self._leave("it ended by an error of its own", is_told=False)
        if not self._can_lose_any():
            where = "a worker has left its steps" if self._has_left else "not all workers had begun their steps"
            return self._leave(self._why_not or where)
        if place[1] >= 0 and place in self._places.values():
            return self._leave(f"a worker died in step {place[0]}, replica {place[1]} before")
        self._places[rank] = place if place[1] >= 0 else self._places.get(rank, place)
        self._pending.add(rank)
        self._deadline = time.monotonic() + _GATHER_S
        reason = self._do(self._members.died(rank))
        what, self._dead = self._dead, ""
        if not reason and is_new:
            self._replace(rank, ending)
        elif not reason:
            self._lost_s = time.monotonic()
            self._go_on(len(others), rank, ending, what)
        return reason or self._invite()

    def _go_on(self, others: int, rank: int, ending: Ending, what: str) -> None:
        """Say who goes on without a member that has died, and let another one be started where anybody does."""
        if others == 0:
            self._tell(f"{what}; the others had finished their steps.")
            self.dismiss()
            return
        self._tell(f"{what}; {f'{others} workers go' if others > 1 else '1 worker goes'} on without it.")
        if self._is_own(rank):
            self._guests.judge(ending, has_joined=True)

    def _replace(self, rank: int, ending: Ending) -> None:
        """Judge the death of a worker that had not joined."""
        if self._is_own(rank):
            self._guests.lost(rank, ending)

    def _invite(self) -> str:
        """Let those join that are ready, where there is a place."""
        for rank in self._replacements.invite(self._count(self._members.active)):
            self._do(self._members.invite(rank))
        return ""

    def can_lose(self, rank: int) -> bool:
        """Whether the others could go on without a worker that does not answer."""
        is_needed = rank not in {*self._replacements.guests} | self._released
        return not is_needed or (self._can_lose_any() and rank in self._members.active)

    def _can_lose_any(self) -> bool:
        members = self._members  # all have begun their steps, or have finished them
        return members.phase != "left" and {*members.members} - members.new <= self._open

    def look(self) -> str:
        """Return why it cannot be gone on with: the world has not been formed in time; empty where it can."""
        if self.is_forming and time.monotonic() > self._deadline:
            return self._leave("they have not met in time")
        self._look_at_asked()
        return ""

    def resize(self, asked: Asked) -> None:
        """Let the world have as many workers as somebody asks for; answers when it has, or why it cannot."""
        members, (least, most) = self._members, self._sizes
        why_not = why_refused(asked.workers, least, most)
        if why_not:
            asked.answer({"refused": why_not})
            return
        if self._asked is not None:
            self._asked.fail(f"{asked.workers} have been asked for since")
        self.wanted = asked.workers
        self._asked = Resizing(asked, members.active)
        self._lost_s = time.monotonic()
        self._share_out()
        self._do(self._members.resize(self.wanted))
        self._invite()

    def _share_out(self) -> None:
        """Let as many be started as are missing, and end the guests that nobody needs any more."""
        self.unwanted.update(self._replacements.resize(self.wanted, len(self._members.active)))

    def _why_short(self) -> str:
        """Return why no more can join; empty as long as one may."""
        return "" if self._replacements.is_coming else self._replacements.why_not or NONE_STARTED

    def _look_at_asked(self) -> None:
        members = self._members
        if self._asked is None:
            return
        if members.phase == "left" or members.is_ending or members.finished:
            self._asked.fail("the workers are being ended" if members.phase == "left" else "the run is ending")
        elif members.phase == "steady" and not members.new and len(members.active) == self.wanted:
            self._asked.succeed(members.active)
        elif len(members.active) < self.wanted and not members.new and (why := self._why_short()):
            self._asked.fail(f"there are {len(members.active)} workers, and no more can join: {why}")
        else:
            return
        self._asked = None

    def _leave(self, reason: str, *, is_told: bool = True) -> str:
        return self._do(self._members.give_up(reason), is_told=is_told) or reason

    def _do(self, outcome: tuple[Membership, tuple[Order, ...]], *, is_told: bool = True) -> str:
        self._members, orders = outcome
        reason = ""
        for number in self._members.members:
            self._replacements.became_member(number)
        for order in orders:
            if isinstance(order, Halt | Form):
                self._deadline = time.monotonic() + _GATHER_S
            if isinstance(order, Leave):
                reason = order.reason
                if is_told:
                    who = f"{self._dead}; the" if self._dead else "The"
                    self._tell(f"{who} other workers cannot go on without it: {reason}.")
            released = order.released if isinstance(order, Halt) else ()
            steps = {dead: step for dead, (step, _) in self._places.items() if step > 0}
            deaths = {"deaths": steps} if steps and isinstance(order, Halt) else {}
            for rank in (*self._members.members, *released):
                self._send(rank, _message_of(order) | deaths)
            if released:
                self._released |= {*released}
                self.excluded |= {*released}
                left = len(self._members.active)
                self._tell(f"{ranks_of(released)} released: {counted(left, 'worker')}.")
        if self._members.phase == "steady":
            self.excluded |= self._pending
            self._pending = set()
        return reason


def off(why: str) -> str:
    """Return what to say where nobody can go on without a worker that has died."""
    return f"live recovery is off: {why}. A death ends all workers, and restarts follow as far as they are allowed."


def _message_of(order: Order) -> dict[str, Any]:
    if isinstance(order, Leave):
        return {"leave": order.reason}
    if isinstance(order, Halt):
        released = {"released": order.released} if order.released else {}
        door = {"door": True} if order.is_door else {}
        return {"halt": order.epoch, "members": order.members, **released, **door}
    if isinstance(order, Knock):
        return {"knock": True}
    told = {"members": order.members, "passed": order.passed, "offer": order.offer, "door": order.is_door}
    return {"form": order.epoch, **told}
