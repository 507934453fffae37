"""Where the launchers of several hosts meet: a store of our own at the endpoint, and one of them who calls the rounds.

The launcher on whose machine the endpoint lies keeps the store, bound to that one address; whoever connects proves
first that he knows the run's secret. Who comes is compared with who came first, so that a host with other code hears of
it at once. Which hosts run, and when, is decided by the keeper alone (`rounds`).
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import final

from unisono.errors import ConfigError, LaunchError, PeerLost
from unisono.launchers.local import Signals
from unisono.launchers.worker_group import Signalled
from unisono.nodes.endpoint import Interrupted, find_secret, listen_at, wait_for_keeper
from unisono.nodes.network import Interface
from unisono.nodes.peer_monitor import PeerMonitor, beat_key
from unisono.nodes.plan import NodesPlan
from unisono.nodes.roll import NodeInfo, check_counts, disagreement, skew
from unisono.nodes.rounds import Gathering, RecentBeats, Told
from unisono.nodes.values import SharedValues
from unisono.store.client import Client, NotOurStore, StoreLost
from unisono.store.secret import VARIABLE, key_of
from unisono.store.server import Server
from unisono.system.messages import tell

_ANSWER_S = 10.0
_POLL_S = 0.1
_LINGER_S = 3.0


class NotNeeded(Exception):
    """The run was over before this host could take part."""


@final
class Rendezvous:
    """One launcher's side of the rendezvous.

    Attributes:
        secret: That the hosts share.
        info: What this launcher has said about itself.
        values: Of the job, in the store.
        peer_monitor: Talks to the others.

    Raises:
        ConfigError: Node rank 0 is not where the endpoint is; this host has no secret, or does not fit to the others.
        LaunchError: Nobody, a stranger, or a launcher with another secret answers at the endpoint.
        Interrupted: A signal came.
    """

    def __init__(
        self,
        plan: NodesPlan,
        interface: Interface,
        describe: Callable[[int], NodeInfo],
        signals: Signals,
        silence_s: float,
        cache: Path,
    ) -> None:
        self._plan, self._interface, self._signals = plan, interface, signals
        self._silence_s, self._request, self._waiting = silence_s, 0, RecentBeats(silence_s)
        listener = listen_at(plan, interface)
        try:
            self.secret = find_secret(plan, interface, cache, is_first=listener is not None)
        except BaseException:
            if listener is not None:
                listener.close()
            raise
        self._server = None if listener is None else Server(listener, key_of(self.secret), tell)
        try:
            self._client = Client(plan.host, plan.port, key_of(self.secret))
            self._begin(describe)
        except BaseException:
            self._close_store()
            raise

    def _begin(self, describe: Callable[[int], NodeInfo]) -> None:
        plan = self._plan
        if self._server is None:
            wait_for_keeper(plan, self._signals)
        self._find_store()
        self.values = SharedValues(self._client, f"unisono/{plan.run_id}")
        if self._server is None:
            self._find_reference()
        self.info = describe(self.values.number("arrivals"))
        self.values.put(f"info/{self.info.number}", asdict(self.info))
        if self.info.number == 0:
            self.values.put("reference", asdict(self.info))
        self.peer_monitor = PeerMonitor(self.values, self.info.number, self._silence_s, self._signals)
        self.values = self.values.guarded(lambda: self.peer_monitor.cut_off)
        try:
            self._check_fit()
        except BaseException:
            self.close(is_over=False)
            raise

    @property
    def is_keeper(self) -> bool:
        """Whether this launcher keeps the store."""
        return self._server is not None

    def next_round(self, fewest: int) -> tuple[SharedValues, int, int]:
        """Wait for the other hosts; return a board for this round alone, a place among them, and their number.

        Args:
            fewest: So many there must be.

        Raises:
            ConfigError: They have not come in time, do not fit together, or one of them sits on this node rank.
            NotNeeded: The run is over.
            PeerLost: The store is out of reach.
            Interrupted: A signal came.
        """  # noqa: DOC501 - check_counts makes a ConfigError
        self._request += 1
        mine = (self.info.number, self._request)
        self.values.put(f"request/{mine[0]}", mine[1])
        holders: dict[int, object] = {}
        gathering, pulse, wanted_s = None, RecentBeats(self._silence_s), time.monotonic()
        is_told = False
        while True:
            told = Told.unpacked(self.values.look("round"))
            if (place := told.place_of(*mine)) is not None:
                return self.values.below(f"round/{told.index}"), place, len(told.members)
            if self.is_keeper:
                if gathering is None:
                    gathering = Gathering(fewest, self._plan.max_nodes, mine[0], told)
                    told = replace(told, is_gathering=True)
                    self.values.put("round", told.packed())
                self._gather(gathering, told, pulse)
            self.check()
            if self.values.look("over") is not None:
                self._take_back()
                raise NotNeeded
            self._check_taken(holders)
            if not told.is_gathering and told.members:  # a run is going on without us: that may take days
                wanted_s = time.monotonic()
                if not is_told:
                    tell(f"the run is going on {len(told.members)} hosts; this one waits until it is used.")
                    is_told = True
            elif time.monotonic() - wanted_s > self._plan.join_s:
                told = Told.unpacked(self.values.look("round"))
                infos = [self.values.look(f"info/{number}") for number, _ in told.waiting(self._requests())]
                came = [NodeInfo(**info) for info in infos]
                self._take_back()
                raise check_counts(came, fewest, self._plan.join_s)
            time.sleep(_POLL_S)

    def _gather(self, gathering: Gathering, told: Told, pulse: RecentBeats) -> None:
        """Begin the next round when it is time; only where the store is kept."""
        requests = told.waiting(self._requests())
        now_s = time.monotonic()
        for number, _ in requests:
            pulse.hear(number, self.values.look(beat_key(number)), now_s)
        found = gathering.look(now_s, [one for one in requests if not pulse.is_silent(one[0], now_s)])
        if found is not None:
            if found.index > 1:  # nobody is left who still reads what was said two rounds ago
                self.values.below(f"round/{found.index - 2}").clear()
            self.values.put("round", found.packed())

    def _requests(self) -> list[tuple[int, int]]:
        """Return the last request of every host that has come: its number, and the number of the request."""
        numbers = range(self.values.asked("arrivals"))
        return [(number, int(self.values.look(f"request/{number}") or 0)) for number in numbers]

    def _take_back(self) -> None:
        self.values.put(f"request/{self.info.number}", 0)

    def check(self) -> None:
        """Raise what keeps this host from going on.

        Raises:
            ConfigError: The hosts do not fit together.
            PeerLost: The store is out of reach.
            Interrupted: A signal came.
        """
        if self._signals.received:
            raise Interrupted(Signalled(self._signals.received[0]))
        if self.peer_monitor.cut_off:
            raise PeerLost(self.peer_monitor.cut_off)
        if (problem := self.values.look("refusal")) is not None:
            raise ConfigError(problem)

    def refuse(self, problem: str) -> ConfigError:
        """Tell all who wait what is wrong, unless the run has begun; return the error for this host."""
        if self.values.look("begun") is None:
            self.values.settle("refusal", problem)
        return ConfigError(problem)

    def num_waiting(self, gone: int) -> int:
        """Return how many hosts wait to take part and can be used; asked by one thread, again and again.

        Args:
            gone: So many of this round have been left out.
        """
        told = Told.unpacked(self.values.look("round"))
        now_s = time.monotonic()
        numbers = [number for number, _ in told.waiting(self._requests())]
        for number in numbers:
            self._waiting.hear(number, self.values.look(beat_key(number)), now_s)
        room = self._plan.max_nodes - len(told.members) + gone
        return min(room, sum(self._waiting.is_alive(number, now_s) for number in numbers))

    def close(self, *, is_over: bool) -> None:
        """Leave; safe to call twice.

        Args:
            is_over: Whether the run has ended for all: who waits is sent home then.
        """
        if not self.peer_monitor.cut_off:
            with contextlib.suppress(PeerLost):  # the others may be gone by now
                self._take_leave(is_over=is_over)
        self.peer_monitor.close()
        self._close_store()

    def _take_leave(self, *, is_over: bool) -> None:
        if self._request:
            self._take_back()
        if is_over:
            self.values.put("over", True)
            self._linger(lambda: not Told.unpacked(self.values.look("round")).waiting(self._requests()))
        elif self.values.look("refusal") is not None:
            self.values.number("heard")
            self._linger(lambda: self.values.asked("heard") >= self.values.asked("arrivals"))

    def _close_store(self) -> None:
        self._client.close()
        if self._server is not None:
            self._server.close()

    def _linger(self, is_enough: Callable[[], bool]) -> None:
        """Keep the store, if it is here, until the others have seen how it ended."""
        deadline = time.monotonic() + _LINGER_S
        while self.is_keeper and time.monotonic() < deadline and not is_enough():
            time.sleep(_POLL_S)

    def _find_store(self) -> None:
        plan = self._plan
        try:
            self._client.ask(b"count")
        except NotOurStore as error:
            raise LaunchError(
                f"{error}. Hint: give all hosts the same {VARIABLE} (the word that the first host has printed) or "
                f"{VARIABLE}_FILE; if another program has the port of {plan.endpoint}, choose another one on all hosts."
            ) from error
        except StoreLost as error:
            raise LaunchError(
                f"what answers at {plan.endpoint} is no store of unisono ({error}). "
                "Hint: another program has that port; choose another one on all hosts."
            ) from error

    def _find_reference(self) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while self.values.look("reference") is None:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"what answers at {self._plan.endpoint} is no launcher of unisono with the job "
                    f"{self._plan.run_id!r} (--rdzv-id). Hint: another job has that port; choose another on all hosts."
                )
            time.sleep(_POLL_S)

    def _check_fit(self) -> None:
        """Compare this host with the one that came first."""
        first = NodeInfo(**self.values.look("reference"))
        if first.number == self.info.number:
            return
        if problem := disagreement(self.info, first):
            raise self.refuse(problem)
        if self.info.arguments != first.arguments:
            tell(f"the program's arguments on {self.info.name} are not those on {first.name}.")
        key = beat_key(first.number)
        before, deadline = self.values.look(key), time.monotonic() + _ANSWER_S
        while (now := self.values.look(key)) is None or now == before:
            if time.monotonic() > deadline:
                raise LaunchError(f"{first.name}, the rendezvous host, has shown no sign of life for {_ANSWER_S:g} s.")
            time.sleep(_POLL_S)
        if problem := skew(time.time(), now[1], self.info, first):
            tell(problem)

    def _check_taken(self, holders: dict[int, object]) -> None:
        """Refuse a node rank on which a living host sits."""
        if self.info.node_rank < 0:
            return
        for number, node_rank, name in self.values.look("sitting") or []:
            if node_rank == self.info.node_rank and number != self.info.number:
                beat = self.values.look(beat_key(number))
                if holders.setdefault(number, beat) != beat:
                    raise ConfigError(
                        f"node rank {node_rank} is taken by {name}, which is at work. "
                        "Hint: give each host its own --node-rank."
                    )
