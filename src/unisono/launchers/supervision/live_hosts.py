"""Live recovery over several hosts: one launcher decides alone, the others tell it what their workers say and suffer.

In: what `LiveRecovery` takes, and what comes from other launchers. Out: the same, and words for them. One launcher
decides for all ranks, that of the lowest-numbered host of those that have agreed to go on: so there are never two
worlds of one epoch, however the network falls apart. A host that is lost is left out with all its workers. They may
still run, as nobody can kill them from here. The run's files belong to the lowest rank, and that is a rank of the
deciding host as long as a worker lives there that has the state. Where none does, all are started again. If the
deciding host is lost, the others agree on another one (`nodes.live.succession`), whose launcher goes on from what they
tell of their workers. Each launcher starts others for its own workers; of one that is ready and has a place the
deciding one hears, and lets it in. Somebody who wants more or fewer workers asks any launcher, and the deciding one
tells each how many are to be on its host. Must not import torch.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, final

from unisono.launchers.control import Asked
from unisono.launchers.membership import Membership, Order
from unisono.launchers.supervision.channels import HostSaid, Told
from unisono.launchers.supervision.live_recovery import LiveRecovery
from unisono.launchers.supervision.replacements import Replacements, node_of
from unisono.launchers.supervision.resizing import NONE_STARTED, shares

_KILLED = -9


class Relay(Protocol):
    """What carries words between the launchers of one attempt, in the order in which they were said."""

    @property
    def spans(self) -> Sequence[range]:
        """The ranks of each host, by node rank."""

    @property
    def node(self) -> int:
        """Node rank of this host."""

    @property
    def hosts(self) -> Sequence[int]:
        """The hosts that go on, by node rank."""

    @property
    def decider(self) -> int:
        """The host whose launcher decides, by node rank."""

    @property
    def gone(self) -> Mapping[int, float]:
        """Hosts that have been left out, and for how many seconds each had not been heard then."""

    def send(self, node: int, message: dict[str, Any]) -> None:
        """Say something to the launcher of another host, which may be gone."""

    def rest(self, *, is_idle: bool) -> None:
        """Say whether no worker of this host is left: then another one is to decide if the deciding one is lost."""

    def arm(self, *, is_on: bool) -> None:
        """Let silence count, from now on or no more: workers can go on without a host that is not heard."""


@final
class DecidingRecovery(LiveRecovery):
    """The side of the launcher that decides: for the workers of all hosts.

    Args:
        relay: Carries words to the other launchers.
        send: Takes a rank of this host and a message for it.
        tell: Takes what is worth knowing, in words.
        replacements: Says which workers are started for others of this host.
        sizes: As `LiveRecovery` has them, for all hosts.
    """

    def __init__(
        self, relay: Relay, send: Callable[[int, dict[str, Any]], None], tell: Callable[[str], None],
        replacements: Replacements, sizes: tuple[int, int] = (1, 0),
    ) -> None:  # fmt: skip
        self._relay, ranks = relay, range(relay.spans[-1].stop)
        self._far = {rank for rank in ranks if not self._is_own(rank)}  # that have not ended
        self._state: dict[str, Any] = {}
        self._is_closed = False
        self._wish, self._shares = 0, dict[int, int]()  # number of the newest one, and what has come of it
        self._why_none: dict[int, str | None] = {}  # by host: why no other worker is started there; None: one may be
        super().__init__(ranks, self._pass_on, tell, replacements, sizes)
        self._members = replace(self._members, far=frozenset(self._far))
        self._send_here = send

    @property
    def is_waiting(self) -> bool:
        """Whether workers of other hosts have not ended, for which this launcher decides."""
        return self._members.phase != "left" and bool(self._far - {*self._members.guests})

    def _is_own(self, rank: int) -> bool:
        return self._node_of(rank) == self._relay.node

    def _node_of(self, rank: int) -> int:
        return node_of(rank, self._relay.spans)

    def heard_host(self, said: HostSaid) -> str:
        """Take in what another launcher says; returns as `heard`."""
        message = said.message
        if "silent" in message:
            return self._lose(said.node)
        if "ask" in message:
            answer = lambda found: self._relay.send(said.node, {"answer": found, "to": message["ask"]})  # noqa: E731
            self.resize(Asked(message["workers"], answer))
        if message.get("wish") == self._wish:
            self._why_none[said.node] = message["why_none"]
        rank, told = message.get("rank"), message.get("told", {})  # none: the account of a host that is lost since
        if rank is None or self._node_of(rank) != said.node:
            return ""
        if "arrived" in told:
            return self._let_come(rank)
        if rank not in self._far:
            return ""  # it has been left out, and says so late
        if told:
            return self.heard(Told(rank, told))
        if "died" in message:
            return self._died_far(rank, message["died"])
        self._far.discard(rank)
        return self.ended(rank)

    def _let_come(self, rank: int) -> str:
        """Let a worker of another host join, which is ready, and for which there is a place there."""
        is_there = self._node_of(rank) in self._relay.hosts and rank not in self.excluded
        if is_there and not self._is_closed:
            self._far.add(rank)
            self._do(self._members.invite(rank, is_far=True))
        return self._shared("")

    def dismiss(self, why: str = "") -> None:
        """Let nobody join any more; `why`: nobody of this host."""
        super().dismiss(why)
        self._is_closed |= not why

    def heard(self, told: Told) -> str:
        """As `LiveRecovery.heard`."""
        return self._shared(super().heard(told))

    def ended(self, rank: int) -> str:
        """As `LiveRecovery.ended`."""
        return self._shared(super().ended(rank))

    def died(
        self, rank: int, code: int, place: tuple[int, int], *, has_report: bool, reached: tuple[int, int] = (0, 0),
        how: str = "",
    ) -> str:  # fmt: skip
        """As `LiveRecovery.died`."""
        return self._shared(super().died(rank, code, place, has_report=has_report, reached=reached, how=how))

    def look(self) -> str:
        """As `LiveRecovery.look`."""
        return self._shared(super().look())

    def resize(self, asked: Asked) -> None:
        """As `LiveRecovery.resize`, for the workers of all hosts."""
        super().resize(asked)
        self._shared("")

    def _share_out(self) -> None:
        """Tell each launcher how many workers there are to be on its host."""
        nodes = [self._node_of(rank) for rank in self._members.active]
        self._shares, self._why_none = shares(self.wanted, nodes, self._relay.hosts), {}
        self._wish += 1
        for node, size in self._shares.items():
            if node == self._relay.node:
                self.unwanted.update(self._replacements.resize(size, nodes.count(node)))
            else:
                self._relay.send(node, {"wish": self._wish, "wanted": self.wanted, "size": size})

    def _why_short(self) -> str:
        nodes = [self._node_of(rank) for rank in self._members.active]
        short = [node for node, size in self._shares.items() if nodes.count(node) < size and node in self._relay.hosts]
        here = super()._why_short() or None
        why = {node: here if node == self._relay.node else self._why_none.get(node) for node in short}
        given = [f"host {node}: {text}" for node, text in why.items() if text is not None]
        return "; ".join(given or [NONE_STARTED]) if None not in why.values() else ""

    def _heard_open(self, rank: int, message: dict[str, Any]) -> str:
        place = self.place
        reason = super()._heard_open(rank, message)
        self.place = self.place if self._is_own(rank) else place
        return reason

    def _do(self, outcome: tuple[Membership, tuple[Order, ...]], *, is_told: bool = True) -> str:
        reason = super()._do(outcome, is_told=is_told)
        self._far -= self._released
        return reason

    def _lose(self, node: int) -> str:
        """Go on without a host whose launcher is silent."""
        lost = [rank for rank in sorted(self._far) if self._node_of(rank) == node]
        if not lost or self._members.phase == "left":
            return ""
        self._far -= {*lost}
        reason = ""
        for rank in (rank for rank in lost if rank not in self._members.finished):  # nobody waits for those
            reason = reason or self._lose_rank(rank)
        if self._asked is not None and not reason:
            self._share_out()  # the others take over what was that host's
        return reason

    def take_over(self, place: str, released: Collection[int]) -> None:
        """Take in where the run is on this host, and which of its workers have been released."""
        self.place = place
        self._released |= {*released}

    def resume(self, accounts: Sequence[Mapping[str, Any]]) -> str:
        """Decide from now on, where another launcher has; return why the workers cannot go on, empty where they can.

        Args:
            accounts: What the launchers of all hosts that go on tell of their workers, see `Account`.
        """
        workers = {int(rank): how for account in accounts for rank, how in account["workers"].items()}
        self.excluded = {rank for account in accounts for rank in account["excluded"]}
        newest = max(accounts, key=lambda account: account["epoch"])
        self._wish, wanted = max((account["wish"], account["wanted"]) for account in accounts)
        self.wanted = wanted or self.wanted
        called = [rank for rank, how in workers.items() if not how["waits"]]
        all_ranks = dict.fromkeys((*newest["members"], *self._members.members, *sorted(called)))
        members = tuple(rank for rank in all_ranks if rank not in self.excluded)
        guests = sorted({*workers} - {*members} - self.excluded)
        lost = [rank for rank in members if rank not in workers]
        known = [(rank, workers[rank]) for rank in members if rank in workers]
        self._far = {rank for rank in (*members, *guests) if rank in workers and not self._is_own(rank)}
        self._members = replace(
            self._members, members=members, epoch=newest["epoch"], most=self.wanted, far=frozenset({*self._far, *lost}),
            new=frozenset(rank for rank, how in known if not how["has_state"]),
            is_door=_is_door(newest, workers),
        )  # fmt: skip
        self._open = {*lost} | {rank for rank, how in known if how["open"]}
        told = {rank: (step, replica) for account in accounts for rank, step, replica in account["places"]}
        pending = {rank for rank, how in known if how["died"] is not None}
        self._places = {rank: place for rank, place in told.items() if rank not in pending}  # those die again below
        self._tell(f"host {self._relay.node} decides from now on.")
        reason = ""
        for rank, how in known:
            if how["finished"] >= 0:
                reason = reason or self._do(self._members.has_finished(rank, how["finished"]))
        for rank in lost:
            reason = reason or self._lose_rank(rank)
        for rank, how in known:
            if how["died"] is not None:
                reason = reason or self._died_far(rank, how["died"])
            elif how["ended"]:
                self._far.discard(rank)
                reason = reason or self.ended(rank)
        for rank in guests:
            self._do(self._members.invite(rank, is_far=not self._is_own(rank)))
        return self._shared(reason)

    def _died_far(self, rank: int, how: Mapping[str, Any]) -> str:
        self._far.discard(rank)
        place, reached = tuple(how["place"]), tuple(how["reached"])
        return self.died(rank, how["code"], place, has_report=how["has_report"], reached=reached)

    def _lose_rank(self, rank: int) -> str:
        node = self._node_of(rank)
        how = f"is on host {node}, which has not been heard for {self._relay.gone[node]:.1f} s"
        return self.died(rank, _KILLED, (-1, -1), has_report=False, how=how)

    def _pass_on(self, rank: int, message: dict[str, Any]) -> None:
        if self._is_own(rank):
            self._send_here(rank, message)
        elif rank in self._far:
            self._relay.send(self._node_of(rank), {"rank": rank, "told": message})

    def _shared(self, reason: str) -> str:
        """Tell the other launchers what they have to know, where it has changed; return the reason."""
        can_lose = self._can_lose_any()
        places = [(rank, *place) for rank, place in self._places.items()]
        known = {"excluded": sorted(self.excluded), "places": places, "is_closed": self._is_closed}
        state = {**known, "can_lose": can_lose, "reason": reason}
        if state != self._state:
            self._state = state
            self._relay.arm(is_on=can_lose)
            for node in self._relay.hosts:
                if node != self._relay.node:
                    self._relay.send(node, state)
        return reason


def _is_door(newest: Mapping[str, Any], workers: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether members may still be at the door by which the newest epoch was called: none is, when they have met."""
    known = [workers[rank] for rank in newest["members"] if rank in workers]
    return newest["is_door"] and any(how["up"] < newest["epoch"] for how in known if how["died"] is None)
