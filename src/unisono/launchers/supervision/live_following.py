"""Live recovery over several hosts, the side of a launcher that does not decide; it may come to decide.

In: what its workers say and suffer, and what the deciding launcher says. Out: the first for that launcher, the second
for the workers; others for those that have died, once the deciding launcher has lived through it; and an `Account` of
the workers for a launcher that decides from now on: another one, or this one, when it has the accounts of all hosts
that go on. Must not import torch.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, final

from unisono.launchers.control import Asked
from unisono.launchers.supervision.channels import HostSaid, Told
from unisono.launchers.supervision.guests import Guests, HasGuests, death_of
from unisono.launchers.supervision.live_hosts import DecidingRecovery, Relay
from unisono.launchers.supervision.live_recovery import LiveRecovery
from unisono.launchers.supervision.replacements import Replacements
from unisono.launchers.supervision.resizing import NONE_STARTED, PassedOn
from unisono.launchers.supervision.restarts import Ending


@final
class Account:
    """What a launcher knows of its workers: all that another one needs to decide for them.

    Attributes:
        places: Where workers of any host have died, as far as the deciding launcher has told: rank, step, replica.
        workers: Of this host that live: those that wait to be called are not among them.
    """

    def __init__(self, ranks: range) -> None:
        self.workers, self.places = {*ranks}, list[tuple[int, int, int]]()
        self._epoch, self._members, self._is_door = 0, list[int](), False  # of the newest call
        self._known: dict[int, dict[str, Any]] = {rank: _begun(has_state=True) for rank in ranks}

    def told(self, rank: int, message: Mapping[str, Any]) -> None:
        """Take in what a worker is told."""
        if message.get("halt", 0) > self._epoch:
            self._epoch, self._is_door = message["halt"], message.get("door", False)
            self._members = [*message["members"]]
        if "halt" in message and rank in self._known and self._known[rank]["waits"]:
            self._known[rank]["waits"] = False
            self.workers.add(rank)

    def waits(self, rank: int) -> None:
        """Take in that the deciding launcher is told of one that is ready to join."""
        self._known[rank] = _begun(has_state=False)

    def heard(self, rank: int, message: Mapping[str, Any]) -> None:
        """Take in what a worker says."""
        if "open" in message:
            self._known[rank].update(open=message["open"], finished=-1)
            self._known[rank]["has_state"] |= message["open"]
        elif "finished" in message:
            self._known[rank]["finished"] = message["finished"]
        elif "up" in message:
            self._known[rank]["up"] = message["up"]

    def has_state(self, rank: int) -> bool:
        """Whether a worker has what the others have."""
        return rank in self._known and bool(self._known[rank]["has_state"])

    def ended(self, rank: int, how: Mapping[str, Any] | None = None) -> None:
        """Take in that a worker has ended well; or died, and `how`."""
        self._known[rank].update({"ended": True} if how is None else {"died": how})
        self.workers.discard(rank)

    def forget(self, rank: int) -> bool:
        """Take in that one is gone whom nobody waits for; return whether the deciding launcher knows of it."""
        self.workers.discard(rank)
        return self._known.pop(rank, None) is not None

    def has_living(self) -> bool:
        """Whether a worker that has the state has not died."""
        return any(how["has_state"] and how["died"] is None for how in self._known.values())

    def released(self) -> dict[str, Any]:
        """Return the newest call as one hears it that is not among its members."""
        return {"halt": self._epoch, "members": self._members}

    def left(self) -> set[int]:
        """Return the ranks of those that have been called, and have not ended well."""
        return {rank for rank, how in self._known.items() if not how["ended"] and not how["waits"]}

    def packed(self, excluded: Collection[int]) -> dict[str, Any]:
        """Return it in JSON's types, with the ranks whose deaths have been lived through."""
        workers = {str(rank): dict(how) for rank, how in self._known.items()}
        newest = {"epoch": self._epoch, "members": self._members, "is_door": self._is_door}
        return {**newest, "excluded": sorted(excluded), "places": self.places, "workers": workers}


def _begun(*, has_state: bool) -> dict[str, Any]:
    """Return what is known of a worker first: of the start, or one that waits to be called."""
    began = {"waits": not has_state, "has_state": has_state, "open": False, "finished": -1, "up": 0}
    return {**began, "ended": False, "died": None}


@final
class FollowingRecovery(HasGuests):
    """Tells the deciding launcher what happens here, and does what it says.

    Args:
        relay: Carries words to the other launchers.
        send: Takes a rank of this host and a message for it.
        tell: Takes what is worth knowing, in words.
        replacements: Says which workers are started for others of this host.
        sizes: As `LiveRecovery` has them, for all hosts.

    Attributes:
        heir: What takes the events in from now on: this, until this launcher decides.
        wanted: How many workers there are to be on this host.
        place: As `LiveRecovery` has it, on this host.
        excluded: As `LiveRecovery` has it, for all ranks.
    """

    def __init__(
        self, relay: Relay, send: Callable[[int, dict[str, Any]], None], tell: Callable[[str], None],
        replacements: Replacements, sizes: tuple[int, int] = (1, 0),
    ) -> None:  # fmt: skip
        self._relay, self._send_here, self._tell = relay, send, tell
        self.wanted, self.place, self._sizes = len(relay.spans[relay.node]), "", sizes
        self._wish = 0, 0  # number of the newest one, and how many workers it is for, on all hosts
        self._passed_on, self._said_of_wish = PassedOn(self._say), dict[str, Any]()
        self._reason, self._can_lose, self._is_over = "", False, False
        self.excluded: set[int] = set()
        self.heir: LiveRecovery | FollowingRecovery = self
        self._replacements, self._guests = replacements, Guests(replacements, tell)
        self._account, self._decider = Account(relay.spans[relay.node]), relay.decider
        self._deaths: dict[int, Ending] = {}  # of workers without which the others do not go on yet
        self._never_came, self._released = set[int](), set[int]()
        self._accounts: dict[int, dict[str, Any]] = {}  # where this launcher is to decide
        self._early: list[HostSaid] = []

    @property
    def is_waiting(self) -> bool:
        """Whether the deciding launcher has not said yet that all is over."""
        return not self._reason and not self._is_over

    def start(self) -> list[int]:
        """Return the ranks that are to be started now; each once."""
        return self._replacements.start(len(self._account.workers)) if self.is_waiting else []

    def dismiss(self, why: str = "") -> None:
        """Let nobody join any more."""
        self._guests.dismiss(why, is_short=self._is_short())

    def _is_short(self) -> bool:
        return len(self._account.workers) < self.wanted

    def resize(self, asked: Asked) -> None:
        """Pass on to the deciding launcher that somebody wants more or fewer workers."""
        self._passed_on.ask(asked)

    def heard_host(self, said: HostSaid) -> str:
        """Take in what the deciding launcher says; return why the workers cannot go on, empty where they can."""
        message = said.message
        if "succeeds" in message:
            return self._follow(said.node)
        if "account" in message:
            self._accounts[said.node] = message["account"]
        elif self._decider == self._relay.node:  # of hosts that have given their accounts, or are lost
            self._early += [] if "silent" in message else [said]
        elif said.node == self._decider:
            self._obey(message)
        return self._succeed()

    def _obey(self, message: dict[str, Any]) -> None:
        if "rank" in message:
            rank, told = message["rank"], message["told"]
            self._account.told(rank, told)
            if rank in told.get("released", ()):
                self._release(rank)
            elif "halt" in told:
                self._replacements.became_member(rank)
            self._send_here(rank, told)
        elif "answer" in message:
            self._passed_on.answered(message["to"], message["answer"])
        elif "wish" in message:
            self._wish, self.wanted = (message["wish"], message["wanted"]), message["size"]
            self.unwanted.update(self._replacements.resize(self.wanted, len(self._account.workers)))
            self._invite()
        elif "over" in message:
            self._can_lose, self._is_over = False, True
            self._relay.arm(is_on=False)
            self.dismiss()
            if not self._account.left() <= self.excluded:  # they are dead, or nobody decides for them any more
                self._reason = "the deciding launcher has ended its part"
        else:
            self._can_lose, self._reason = message["can_lose"], self._reason or message["reason"]
            self._account.places = message["places"]
            self._relay.arm(is_on=self._can_lose)
            self._live_through({*message["excluded"]})
            if message["is_closed"]:
                self.dismiss()

    def _live_through(self, excluded: set[int]) -> None:
        """Take into account without whom the others go on; for those of this host another one may be started."""
        self.excluded = excluded | self._never_came | self._released
        for rank in sorted(excluded & self._account.workers):  # that lives, and whose last word was not heard
            self._release(rank)
            self._send_here(rank, {**self._account.released(), "released": (rank,)})
        for rank in sorted(excluded & {*self._deaths}):
            ending = self._deaths.pop(rank)
            if self._account.has_state(rank):
                self._guests.judge(ending, has_joined=True)
            else:
                self._guests.lost(rank, ending)

    def _release(self, rank: int) -> None:
        """Take in that one leaves which is not needed any more."""
        self._released.add(rank)
        self.excluded.add(rank)
        self._account.forget(rank)
        self._deaths.pop(rank, None)
        if not self._account.has_living():
            self._relay.rest(is_idle=True)

    def _packed(self) -> dict[str, Any]:
        return {**self._account.packed(self.excluded), "wish": self._wish[0], "wanted": self._wish[1]}

    def _follow(self, decider: int) -> str:
        """Tell another launcher from now on, which decides; or decide."""
        self._decider = decider
        if decider != self._relay.node:
            self._relay.send(decider, {"account": self._packed()})
            self._passed_on.ask_again(self.resize)
        return self._succeed()

    def _succeed(self) -> str:
        """Decide, where this launcher is to and has heard from all that go on."""
        if self._decider != self._relay.node or not {*self._relay.hosts} <= {*self._accounts, self._decider}:
            return self._reason
        others = [self._accounts[node] for node in self._relay.hosts if node != self._decider]
        self._live_through(self.excluded.union(*(account["excluded"] for account in others)))
        heir = DecidingRecovery(self._relay, self._send_here, self._tell, self._replacements, self._sizes)
        heir.take_over(self.place, self._released)
        heir.unwanted.update(self.unwanted)
        self._reason = heir.resume([self._packed(), *others])
        self._passed_on.ask_again(heir.resize)
        for said in self._early:
            self._reason = self._reason or heir.heard_host(said)
        self.heir = heir
        return self._reason

    def _say(self, message: dict[str, Any]) -> str:
        if self._decider != self._relay.node:
            self._relay.send(self._decider, message)
        return self._reason

    def heard(self, told: Told) -> str:
        """Pass on what a worker says."""
        rank, message = told.rank, told.message
        if rank in self._released:
            return self._reason
        if "arrived" in message:
            self._replacements.ready(rank)
            return self._invite()
        if "refused" in message:
            self._guests.refused(rank, message["refused"], is_short=self._is_short())
            return self._reason
        if message.get("open") and not self._account.has_state(rank):
            self._replacements.joined()
            self._relay.rest(is_idle=False)
        if message.get("open") and "replicas" in message:
            self.place = message["directory"]
            self._sizes = self._sizes[0], min(self._sizes[1] or message["replicas"], message["replicas"])
        self._account.heard(rank, message)
        return self._say({"rank": rank, "told": message})

    def _invite(self) -> str:
        """Tell of those that are ready, where there is a place on this host."""
        for rank in self._replacements.invite(len(self._account.workers)):
            self._account.waits(rank)
            self._say({"rank": rank, "told": {"arrived": True}})
        return self._reason

    def ended(self, rank: int) -> str:
        """Tell that a worker has ended well; one that has not joined cannot."""
        if rank in self._released:
            return self._reason
        if not self._account.has_state(rank):
            return self.died(rank, 0, (0, -1), has_report=False)
        self.dismiss()
        self._account.ended(rank)
        return self._say({"rank": rank})

    def died(
        self, rank: int, code: int, place: tuple[int, int], *, has_report: bool, reached: tuple[int, int] = (0, 0)
    ) -> str:
        """Tell of a death; see `LiveRecovery.died`. What comes of it is heard later."""
        how = {"code": code, "place": place, "has_report": has_report, "reached": reached}
        ending = death_of(code, place, reached, has_report=has_report)
        if rank in self._released:
            if code > 0:
                self._tell(f"rank {rank}, which had left, {ending.what}.")
            return self._reason
        if rank in self._replacements.guests:
            self._replacements.became_member(rank)
            self._never_came.add(rank)
            self.excluded.add(rank)
            self._guests.lost(rank, ending)
            return self._say({"rank": rank, "died": how}) if self._account.forget(rank) else self._reason
        self._account.ended(rank, how)
        if not self._account.has_living():
            self._relay.rest(is_idle=True)
        self._deaths[rank] = ending
        self._say_of_wish()  # before it can be judged: another one may be started
        self._say({"rank": rank, "died": how})
        return self._invite()

    def can_lose(self, rank: int) -> bool:
        """Whether the others could go on without a worker that does not answer."""
        return self._can_lose or rank in self.guests

    def look(self) -> str:
        """Return why the workers cannot go on; empty where they can."""
        self._say_of_wish()
        return self._reason

    def _say_of_wish(self) -> None:
        """Tell whether another worker may still join here, where it has been asked for and that has changed."""
        may_come = self._replacements.is_coming or bool(self._deaths)
        why_none = None if may_come else self._replacements.why_not or NONE_STARTED
        said = {"wish": self._wish[0], "why_none": why_none}
        if self._wish[0] and said != self._said_of_wish:
            self._said_of_wish = said
            self._say(said)


Recovery = LiveRecovery | FollowingRecovery
