"""Where the launchers of several hosts meet: a store at the endpoint, and torch's elastic rendezvous over it.

The launcher on whose machine the endpoint lies keeps the store, bound to that one address; torch's own way would listen
on all. Who comes is compared with who came first, so that a host with other code hears of it at once.

Source: https://docs.pytorch.org/docs/stable/elastic/rendezvous.html (state machine, keep-alive)
"""

import contextlib
import errno
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any, final

from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from unisono.errors import ConfigError, LaunchError, PeerLost
from unisono.launchers.crew import Signalled, next_event
from unisono.launchers.local import Signals
from unisono.launchers.output import tell
from unisono.nodes.board import Board
from unisono.nodes.liaison import Liaison, beat_key
from unisono.nodes.network import Interface, explain
from unisono.nodes.plan import NodesPlan
from unisono.nodes.roll import Card, check_counts, disagreement, skew

_ANSWER_S = 10.0
_STORE_TIMEOUT = timedelta(seconds=60)
_LAST_CALL = timedelta(seconds=3)  # for more hosts than the fewest; who comes later joins between two steps
_CLOSE = timedelta(seconds=5)
_POLL_S = 0.1
_WAIT_S = 0.25
_REMIND_S = 15.0
_LINGER_S = 3.0
_BEATS = 5  # that may be missed in a row


class Interrupted(Exception):
    """A signal came while the hosts were meeting."""

    def __init__(self, event: Signalled) -> None:
        super().__init__(event.signum)
        self.event = event


class NotNeeded(Exception):
    """The run was over before this host could take part."""


@final
class Meeting:
    """One launcher's side of the meeting place.

    Args:
        plan: What it was told.
        interface: For everything between hosts.
        describe: Makes the card from the number of arrival.
        signals: Interrupt the waiting.
        silence_s: Longest silence of a host.

    Attributes:
        card: What this launcher has said about itself.
        board: Of the job.
        liaison: Talks to the others.

    Raises:
        ConfigError: Node rank 0 is not where the endpoint is; this host does not fit to the others.
        LaunchError: Nobody, or a stranger, answers at the endpoint.
        Interrupted: A signal came.
    """

    def __init__(
        self,
        plan: NodesPlan,
        interface: Interface,
        describe: Callable[[int], Card],
        signals: Signals,
        silence_s: float,
    ) -> None:
        self._plan, self._interface, self._signals = plan, interface, signals
        self._server = self._serve()
        if self._server is None:
            self._wait_for_keeper()
        self.board = Board(self._connect(), f"unisono/{plan.run_id}")
        if self._server is None:
            self._find_reference()
        self.card = describe(self.board.number("arrivals"))
        self.board.put(f"card/{self.card.number}", asdict(self.card))
        if self.card.number == 0:
            self.board.put("reference", asdict(self.card))
        talk = Board(self._connect(), f"unisono/{plan.run_id}")
        self.liaison = Liaison(talk, self.card.number, silence_s, signals)
        self.board = self.board.guarded(lambda: self.liaison.cut_off)
        try:
            self._handler = self._join_torchs(silence_s)
            self._check_fit()
        except BaseException:
            self.close(is_over=False)
            raise

    @property
    def is_keeper(self) -> bool:
        """Whether this launcher keeps the store."""
        return self._server is not None

    def next_round(self) -> tuple[Board, int, int]:
        """Wait for the other hosts; return a board for this round alone, a place among them, and their number.

        Raises:
            ConfigError: They have not come in time, do not fit together, or one of them sits on this node rank.
            NotNeeded: The run is over.
            PeerLost: The store is out of reach.
            Interrupted: A signal came.
        """  # noqa: DOC501 - check_counts makes a ConfigError
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def join() -> None:
            try:
                answer.put(self._handler.next_rendezvous())
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                answer.put(error)

        threading.Thread(target=join, name="unisono-join", daemon=True).start()
        holders: dict[int, Any] = {}
        is_told = False
        while True:
            with contextlib.suppress(queue.Empty):
                found = answer.get(timeout=_WAIT_S)
                if isinstance(found, RendezvousTimeoutError):
                    raise check_counts(self._present(), self._plan.min_nodes, self._plan.join_s)
                if isinstance(found, RendezvousClosedError | RendezvousGracefulExitError):
                    self._raise_refusal()
                    raise NotNeeded
                if isinstance(found, BaseException):
                    raise PeerLost(f"the rendezvous failed: {found}") from found
                return Board(found.store, "unisono"), found.rank, found.world_size
            self.check()
            self._check_taken(holders)
            sitting = self.board.look("sitting") or []
            if not is_told and sitting and all(number != self.card.number for number, _, _ in sitting):
                tell(f"the run is going on {len(sitting)} hosts; this one waits until it is used.")
                is_told = True

    def check(self) -> None:
        """Raise what keeps this host from going on.

        Raises:
            ConfigError: The hosts do not fit together.
            PeerLost: The store is out of reach.
            Interrupted: A signal came.
        """
        if self._signals.received:
            raise Interrupted(Signalled(self._signals.received[0]))
        if self.liaison.cut_off:
            raise PeerLost(self.liaison.cut_off)
        self._raise_refusal()

    def refuse(self, problem: str) -> ConfigError:
        """Tell all who wait what is wrong, unless the run has begun; return the error for this host."""
        if self.board.look("begun") is None:
            self.board.settle("refusal", problem)
        return ConfigError(problem)

    def num_waiting(self) -> int:
        """Return how many hosts wait to take part."""
        try:
            return int(self._handler.num_nodes_waiting())
        except RendezvousError as error:
            raise PeerLost(str(error)) from error

    def serve_workers(self) -> tuple[TCPStore, int]:
        """Return a fresh store for the workers of one attempt, and its port, on this host's address alone."""
        return _listen(self._interface.address, 0)

    def close(self, *, is_over: bool) -> None:
        """Leave; safe to call twice.

        Args:
            is_over: Whether the run has ended for all: who waits is sent home then.
        """
        with contextlib.suppress(PeerLost, RendezvousError):  # the others may be gone by now
            if is_over and not self.liaison.cut_off:
                self._handler.shutdown()
                self._linger(lambda: not self._handler.num_nodes_waiting())
            elif self.board.look("refusal") is not None:
                self.board.number("heard")
                self._linger(lambda: self.board.asked("heard") >= self.board.asked("arrivals"))
        self.liaison.close()

    def _linger(self, is_enough: Callable[[], bool]) -> None:
        """Keep the store, if it is here, until the others have seen how it ended."""
        deadline = time.monotonic() + _LINGER_S
        while self.is_keeper and time.monotonic() < deadline and not is_enough():
            time.sleep(_POLL_S)

    def _serve(self) -> TCPStore | None:
        """Return the store where the endpoint lies on this machine and nobody keeps it yet."""
        plan = self._plan
        if plan.node_rank:  # numbered by hand: the first one keeps it
            return None
        try:
            store, _ = _listen(plan.host, plan.port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            if error.errno != errno.EADDRNOTAVAIL and not isinstance(error, socket.gaierror):
                raise LaunchError(f"could not listen at {plan.endpoint}: {explain(error)}.") from error
            if plan.node_rank == 0:
                why = "not an address of this machine"
                if isinstance(error, socket.gaierror):
                    why = f"no address at all: {explain(error)}"
                raise ConfigError(
                    f"--node-rank 0 keeps the meeting place, but {plan.endpoint} (--rdzv-endpoint, --master-addr) is "
                    f"{why}; this machine has {self._interface.address}. "
                    "Hint: give the address of the host of node rank 0, the same on all hosts."
                ) from error
            return None
        return store

    def _connect(self) -> Store:
        plan = self._plan
        answer: queue.SimpleQueue[Store | RuntimeError] = queue.SimpleQueue()
        patience = timedelta(seconds=_ANSWER_S)

        def connect() -> None:
            try:
                answer.put(TCPStore(plan.host, plan.port, is_master=False, timeout=patience, wait_for_workers=False))
            except RuntimeError as error:
                answer.put(error)

        # In a thread: torch waits for ever where something takes the connection and says nothing.
        threading.Thread(target=connect, name="unisono-connect", daemon=True).start()
        try:
            found = answer.get(timeout=_ANSWER_S)
        except queue.Empty:
            found = RuntimeError(f"silent for {_ANSWER_S:g} s")
        if isinstance(found, RuntimeError):
            raise LaunchError(
                f"what answers at {plan.endpoint} is no store of torch ({str(found).strip().splitlines()[0]}). "
                "Hint: another program has that port; choose another one on all hosts."
            )
        found.set_timeout(_STORE_TIMEOUT)
        return found

    def _wait_for_keeper(self) -> None:
        """Return when something answers at the endpoint."""
        plan, began = self._plan, time.monotonic()
        reminded = began
        while True:
            try:
                socket.create_connection((plan.host, plan.port), timeout=2.0).close()
            except OSError as error:
                why, now = explain(error), time.monotonic()
                if now - began > plan.join_s:
                    raise LaunchError(
                        f"no host keeps the meeting place {plan.endpoint} after {plan.join_s:g} s (--rdzv-timeout): "
                        f"{why}. Hint: start the launcher on that host too, and look at its output; the endpoint must "
                        "be an address by which all hosts reach it."
                    ) from error
                if now - reminded > _REMIND_S:
                    reminded = now
                    tell(f"still waiting for {plan.endpoint}: {why}.")
            else:
                return
            event = next_event(self._signals.events, time.monotonic() + _POLL_S)
            if isinstance(event, Signalled):
                raise Interrupted(event)

    def _find_reference(self) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while self.board.look("reference") is None:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"what answers at {self._plan.endpoint} is no launcher of unisono with the job "
                    f"{self._plan.run_id!r} (--rdzv-id). Hint: another job has that port; choose another on all hosts."
                )
            time.sleep(_POLL_S)

    def _join_torchs(self, silence_s: float) -> DynamicRendezvousHandler:
        plan, store = self._plan, self._connect()
        logging.getLogger(DynamicRendezvousHandler.__module__).setLevel(logging.CRITICAL)  # we say what is lost
        beat_s = max(1, round((silence_s or 3600) / _BEATS))
        handler: DynamicRendezvousHandler = DynamicRendezvousHandler.from_backend(
            f"unisono.{plan.run_id}",
            store,
            C10dRendezvousBackend(store, f"unisono.{plan.run_id}"),
            plan.min_nodes,
            plan.max_nodes,
            local_addr=self._interface.address,
            timeout=RendezvousTimeout(timedelta(seconds=plan.join_s), _LAST_CALL, _CLOSE, _CLOSE),
            keep_alive_interval=beat_s,
            keep_alive_max_attempt=_BEATS,
        )
        return handler

    def _check_fit(self) -> None:
        """Compare this host with the one that came first."""
        first = Card(**self.board.look("reference"))
        if first.number == self.card.number:
            return
        if problem := disagreement(self.card, first):
            raise self.refuse(problem)
        if self.card.arguments != first.arguments:
            tell(f"the program's arguments on {self.card.name} are not those on {first.name}.")
        key = beat_key(first.number)
        before, deadline = self.board.look(key), time.monotonic() + _ANSWER_S
        while (now := self.board.look(key)) is None or now == before:
            if time.monotonic() > deadline:
                raise LaunchError(f"{first.name} has shown no sign of life for {_ANSWER_S:g} s, but keeps the store.")
            time.sleep(_POLL_S)
        if problem := skew(time.time(), now[1], self.card, first):
            raise self.refuse(problem)

    def _raise_refusal(self) -> None:
        if (problem := self.board.look("refusal")) is not None:
            raise ConfigError(problem)

    def _check_taken(self, holders: dict[int, Any]) -> None:
        """Refuse a node rank on which a living host sits."""
        if self.card.node_rank < 0:
            return
        for number, node_rank, name in self.board.look("sitting") or []:
            if node_rank == self.card.node_rank and number != self.card.number:
                beat = self.board.look(beat_key(number))
                if holders.setdefault(number, beat) != beat:
                    raise ConfigError(
                        f"node rank {node_rank} is taken by {name}, which is at work. "
                        "Hint: give each host its own --node-rank."
                    )

    def _present(self) -> list[Card]:
        """Return the hosts that have come."""
        numbers = range(self.board.asked("arrivals"))
        return [Card(**card) for number in numbers if (card := self.board.look(f"card/{number}")) is not None]


def _listen(host: str, port: int) -> tuple[TCPStore, int]:
    """Return a store that listens on one address, and its port.

    Raises:
        OSError: It is not an address of this machine, or the port is taken.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)  # a second one that binds meanwhile fails here
    except OSError:
        listener.close()
        raise
    bound = listener.getsockname()
    store = TCPStore(
        str(bound[0]), int(bound[1]), is_master=True, timeout=_STORE_TIMEOUT, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip
    return store, int(bound[1])
