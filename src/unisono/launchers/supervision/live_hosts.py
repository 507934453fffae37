"""Live recovery over several hosts: one launcher decides alone, the others tell it what their workers say and suffer.

In: what `LiveRecovery` takes, and what comes from other launchers. Out: the same, and words for them. The launcher that
keeps the launchers' store decides, for all ranks: so there are never two worlds of one epoch, however the network falls
apart. A host that is silent is left out with all its workers. They may still run, as nobody can kill them from here;
but none of them leads: the run's files belong to the lowest rank, and that is a rank of the deciding host as long as
one of its workers lives. Where none does, all are started again. Must not import torch.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from unisono.launchers.control import Asked
from unisono.launchers.spec import LaunchSpec
from unisono.launchers.supervision.channels import HostSaid, Told
from unisono.launchers.supervision.live_recovery import LiveRecovery
from unisono.launchers.supervision.replacements import Replacements
from unisono.launchers.supervision.resizing import parse_sizes

DECIDING = 0
"""The host whose launcher decides, by node rank: it keeps the launchers' store."""

_KILLED = -9
_ONE_HOST = "workers on several hosts neither come nor go"


class Relay(Protocol):
    """What carries words between the launchers of one attempt, in the order in which they were said."""

    @property
    def spans(self) -> Sequence[range]:
        """The ranks of each host, by node rank."""

    @property
    def node(self) -> int:
        """Node rank of this host."""

    def send(self, node: int, message: dict[str, Any]) -> None:
        """Say something to the launcher of another host, which may be gone."""

    def arm(self, *, is_on: bool) -> None:
        """Let silence count, from now on or no more: workers can go on without a host that is not heard."""

    def leave_out(self, node: int) -> None:
        """Let a host be told, whenever it is heard again, that the others go on without it."""


@final
class DecidingRecovery(LiveRecovery):
    """The side of the launcher that decides: for the workers of all hosts.

    Args:
        relay: Carries words to the other launchers.
        send: Takes a rank of this host and a message for it.
        tell: Takes what is worth knowing, in words.
    """

    def __init__(self, relay: Relay, send: Callable[[int, dict[str, Any]], None], tell: Callable[[str], None]) -> None:
        self._relay, self._home = relay, relay.spans[relay.node]
        ranks = range(relay.spans[-1].stop)
        self._node_of = {rank: node for node, span in enumerate(relay.spans) for rank in span}
        self._far = {rank for rank in ranks if rank not in self._home}  # that have not ended
        self._state: dict[str, Any] = {}
        replacements = Replacements(len(ranks))
        replacements.stop()
        super().__init__(ranks, self._pass_on, tell, replacements)
        self._send_here = send

    @property
    def is_waiting(self) -> bool:
        """Whether workers of other hosts have not ended, for which this launcher decides."""
        return self._members.phase != "left" and bool(self._far)

    def heard_host(self, said: HostSaid) -> str:
        """Take in what another launcher says; returns as `heard`."""
        message = said.message
        if "silent" in message:
            return self._lose(said.node, message["silent"])
        rank = message["rank"]
        if self._node_of.get(rank) != said.node or rank not in self._far:
            return ""  # it has been left out, and says so late
        if "told" in message:
            return self.heard(Told(rank, message["told"]))
        self._far.discard(rank)
        if "died" in message:
            how = message["died"]
            place, reached = tuple(how["place"]), tuple(how["reached"])
            return self.died(rank, how["code"], place, has_report=how["has_report"], reached=reached)
        return self.ended(rank)

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
        """As `LiveRecovery.died`; where no worker of this host is left, they cannot go on."""
        others = {*self._members.members} - {rank}
        can_go_on = code < 0 and not has_report and self._can_lose_any()
        if can_go_on and {*self._members.active} - {rank} and not others & {*self._home}:
            return self._shared(self._leave("no worker is left on the host whose launcher decides"))
        return self._shared(super().died(rank, code, place, has_report=has_report, reached=reached, how=how))

    def look(self) -> str:
        """As `LiveRecovery.look`."""
        return self._shared(super().look())

    def resize(self, asked: Asked) -> None:
        """Refuse it."""
        asked.answer({"refused": f"{_ONE_HOST}."})

    def _heard_open(self, rank: int, message: dict[str, Any]) -> str:
        reason = super()._heard_open(rank, message)
        self.place = ""
        return reason

    def _lose(self, node: int, seconds: float) -> str:
        """Go on without a host whose launcher is silent."""
        lost = [rank for rank in self._relay.spans[node] if rank in self._far]
        if not lost or self._members.phase == "left":
            return ""
        self._relay.leave_out(node)
        self._far -= {*lost}
        reason = ""
        for rank in (rank for rank in lost if rank not in self._members.finished):  # nobody waits for those
            how = f"is on host {node}, which has not been heard for {seconds:.1f} s"
            reason = reason or self.died(rank, _KILLED, (-1, -1), has_report=False, how=how)
        return reason

    def _pass_on(self, rank: int, message: dict[str, Any]) -> None:
        if rank in self._home:
            self._send_here(rank, message)
        elif rank in self._far:
            self._relay.send(self._node_of[rank], {"rank": rank, "told": message})

    def _shared(self, reason: str) -> str:
        """Tell the other launchers what they have to know, where it has changed; return the reason."""
        can_lose = self._can_lose_any()
        state = {"excluded": sorted(self.excluded), "can_lose": can_lose, "reason": reason}
        if state != self._state:
            self._state = state
            self._relay.arm(is_on=can_lose)
            for node in range(len(self._relay.spans)):
                if node != self._relay.node:
                    self._relay.send(node, state)
        return reason


@final
class FollowingRecovery:
    """The side of every other launcher: it tells the deciding one, and does what it says.

    Args:
        relay: Carries words to the deciding launcher.
        send: Takes a rank of this host and a message for it.

    Attributes:
        wanted: How many workers there are to be on this host.
        place: Empty: nobody asks this launcher for more workers.
        excluded: As `LiveRecovery` has it, for all ranks.
        guests: None.
        unwanted: None.
    """

    def __init__(self, relay: Relay, send: Callable[[int, dict[str, Any]], None]) -> None:
        self._relay, self._send_here = relay, send
        self.wanted, self.place = len(relay.spans[relay.node]), ""
        self._reason, self._can_lose = "", False
        self._dead: set[int] = set()
        self.excluded: set[int] = set()
        self.guests: set[int] = set()
        self.unwanted: set[int] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether the deciding launcher has not said yet what is to become of a death on this host."""
        return not self._reason and not self._dead <= self.excluded

    def start(self) -> list[int]:
        """Return the ranks that are to be started now: none."""
        return []

    def dismiss(self, why: str = "") -> None:
        """Let nobody join: nobody does."""

    def resize(self, asked: Asked) -> None:
        """Refuse it."""
        asked.answer({"refused": f"{_ONE_HOST}."})

    def heard_host(self, said: HostSaid) -> str:
        """Take in what the deciding launcher says; return why the workers cannot go on, empty where they can."""
        message = said.message
        if "rank" in message:
            self._send_here(message["rank"], message["told"])
        elif "over" in message:
            self._can_lose = False
            self._relay.arm(is_on=False)
            if self.is_waiting:
                self._reason = "the deciding launcher has ended its part"
        else:
            self.excluded, self._can_lose = {*message["excluded"]}, message["can_lose"]
            self._reason = self._reason or message["reason"]
            self._relay.arm(is_on=self._can_lose)
        return self._reason

    def heard(self, told: Told) -> str:
        """Pass on what a worker says."""
        self._relay.send(DECIDING, {"rank": told.rank, "told": told.message})
        return self._reason

    def ended(self, rank: int) -> str:
        """Tell that a worker has ended well."""
        self._relay.send(DECIDING, {"rank": rank})
        return self._reason

    def died(
        self, rank: int, code: int, place: tuple[int, int], *, has_report: bool, reached: tuple[int, int] = (0, 0)
    ) -> str:
        """Tell of a death; see `LiveRecovery.died`. What comes of it is heard later."""
        self._dead.add(rank)
        how = {"code": code, "place": place, "has_report": has_report, "reached": reached}
        self._relay.send(DECIDING, {"rank": rank, "died": how})
        return self._reason

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
    return DecidingRecovery(relay, send, tell) if relay.node == DECIDING else FollowingRecovery(relay, send)
