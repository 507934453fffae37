"""Live recovery over several hosts, the side of a launcher that does not decide; it may come to decide.

In: what its workers say and suffer, and what the deciding launcher says. Out: the first for that launcher, the second
for the workers; and an `Account` of the workers for a launcher that decides from now on: another one, or this one, when
it has the accounts of all hosts that go on. Must not import torch.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, final

from unisono.launchers.control import Asked
from unisono.launchers.spec import LaunchSpec
from unisono.launchers.supervision.channels import HostSaid, Told
from unisono.launchers.supervision.live_hosts import ONE_HOST, DecidingRecovery, Relay
from unisono.launchers.supervision.live_recovery import LiveRecovery
from unisono.launchers.supervision.replacements import Replacements
from unisono.launchers.supervision.resizing import parse_sizes


@final
class Account:
    """What a launcher knows of its workers: all that another one needs to decide for them.

    Attributes:
        epoch: The newest one that they have been called to.
        places: Where workers of any host have died, as far as the deciding launcher has told: rank, step, replica.
    """

    def __init__(self, ranks: range) -> None:
        self.epoch, self.places = 0, list[tuple[int, int, int]]()
        self._workers: dict[int, dict[str, Any]] = {
            rank: {"open": False, "finished": -1, "ended": False, "died": None} for rank in ranks
        }

    def heard(self, rank: int, message: Mapping[str, Any]) -> None:
        """Take in what a worker says."""
        if "open" in message:
            self._workers[rank].update(open=message["open"], finished=-1)
        elif "finished" in message:
            self._workers[rank]["finished"] = message["finished"]

    def ended(self, rank: int, how: Mapping[str, Any] | None = None) -> None:
        """Take in that a worker has ended well; or died, and `how`."""
        self._workers[rank].update({"ended": True} if how is None else {"died": how})

    def has_living(self) -> bool:
        """Whether a worker has not died."""
        return any(how["died"] is None for how in self._workers.values())

    def left(self) -> set[int]:
        """Return the ranks of those that have not ended well."""
        return {rank for rank, how in self._workers.items() if not how["ended"]}

    def packed(self, excluded: Collection[int]) -> dict[str, Any]:
        """Return it in JSON's types, with the ranks whose deaths have been lived through."""
        workers = {str(rank): dict(how) for rank, how in self._workers.items()}
        return {"epoch": self.epoch, "excluded": sorted(excluded), "places": self.places, "workers": workers}


@final
class FollowingRecovery:
    """Tells the deciding launcher what happens here, and does what it says.

    Args:
        relay: Carries words to the other launchers.
        send: Takes a rank of this host and a message for it.
        tell: Takes what is worth knowing, in words.

    Attributes:
        heir: What takes the events in from now on: this, until this launcher decides.
        wanted: How many workers there are to be on this host.
        place: Empty: nobody asks this launcher for more workers.
        excluded: As `LiveRecovery` has it, for all ranks.
        guests: None.
        unwanted: None.
    """

    def __init__(self, relay: Relay, send: Callable[[int, dict[str, Any]], None], tell: Callable[[str], None]) -> None:
        self._relay, self._send_here, self._tell = relay, send, tell
        self.wanted, self.place = len(relay.spans[relay.node]), ""
        self._reason, self._can_lose, self._is_over = "", False, False
        self.excluded: set[int] = set()
        self.guests: set[int] = set()
        self.unwanted: set[int] = set()
        self.heir: LiveRecovery | FollowingRecovery = self
        self._account, self._decider = Account(relay.spans[relay.node]), relay.decider
        self._accounts: dict[int, dict[str, Any]] = {}  # where this launcher is to decide
        self._early: list[HostSaid] = []

    @property
    def is_waiting(self) -> bool:
        """Whether the deciding launcher has not said yet that all is over."""
        return not self._reason and not self._is_over

    def start(self) -> list[int]:
        """Return the ranks that are to be started now: none."""
        return []

    def dismiss(self, why: str = "") -> None:
        """Let nobody join: nobody does."""

    def resize(self, asked: Asked) -> None:
        """Refuse it."""
        asked.answer({"refused": f"{ONE_HOST}."})

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
            told = message["told"]
            self._account.epoch = max(self._account.epoch, told.get("halt", 0))
            self._send_here(message["rank"], told)
        elif "over" in message:
            self._can_lose, self._is_over = False, True
            self._relay.arm(is_on=False)
            if not self._account.left() <= self.excluded:  # they are dead, or nobody decides for them any more
                self._reason = "the deciding launcher has ended its part"
        else:
            self.excluded, self._can_lose = {*message["excluded"]}, message["can_lose"]
            self._account.places = message["places"]
            self._reason = self._reason or message["reason"]
            self._relay.arm(is_on=self._can_lose)

    def _follow(self, decider: int) -> str:
        """Tell another launcher from now on, which decides; or decide."""
        self._decider = decider
        if decider != self._relay.node:
            self._relay.send(decider, {"account": self._account.packed(self.excluded)})
        return self._succeed()

    def _succeed(self) -> str:
        """Decide, where this launcher is to and has heard from all that go on."""
        if self._decider != self._relay.node or not {*self._relay.hosts} <= {*self._accounts, self._decider}:
            return self._reason
        heir = DecidingRecovery(self._relay, self._send_here, self._tell)
        others = [self._accounts[node] for node in self._relay.hosts if node != self._decider]
        self._reason = heir.resume([self._account.packed(self.excluded), *others])
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
        self._account.heard(told.rank, told.message)
        return self._say({"rank": told.rank, "told": told.message})

    def ended(self, rank: int) -> str:
        """Tell that a worker has ended well."""
        self._account.ended(rank)
        return self._say({"rank": rank})

    def died(
        self, rank: int, code: int, place: tuple[int, int], *, has_report: bool, reached: tuple[int, int] = (0, 0)
    ) -> str:
        """Tell of a death; see `LiveRecovery.died`. What comes of it is heard later."""
        how = {"code": code, "place": place, "has_report": has_report, "reached": reached}
        self._account.ended(rank, how)
        if not self._account.has_living():
            self._relay.rest(is_idle=True)
        return self._say({"rank": rank, "died": how})

    def can_lose(self, rank: int) -> bool:
        """Whether the others could go on without a worker that does not answer."""
        return self._can_lose

    def look(self) -> str:
        """Return why the workers cannot go on; empty where they can."""
        return self._reason


Recovery = LiveRecovery | FollowingRecovery


def recovery_of(
    spec: LaunchSpec, send: Callable[[int, dict[str, Any]], None], tell: Callable[[str], None], relay: Relay | None
) -> Recovery:
    """Return what decides which deaths the others live through, or asks who does."""
    if relay is None:
        replacements = Replacements(spec.workers, spec.spares, spec.max_restarts)
        return LiveRecovery(spec.ranks, send, tell, replacements, parse_sizes(spec.elastic))
    return (DecidingRecovery if relay.node == relay.decider else FollowingRecovery)(relay, send, tell)
