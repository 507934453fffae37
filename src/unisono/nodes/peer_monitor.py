"""The thread that talks to the other launchers while this one watches its workers.

In: the shared values of the job, and who runs the attempt. Out: events in the supervisor's queue (`Called`), endings of
the others, and whether the store is out of reach. Silence is judged by this host's own steady clock.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from unisono.errors import PeerLost
from unisono.launchers.local import Signals
from unisono.launchers.worker_group import Called
from unisono.nodes.rounds import RecentBeats
from unisono.nodes.values import SharedValues
from unisono.nodes.verdicts import NodeEnding

_TALK_S = 0.3
_LOOK_FOR_NEWCOMERS_S = 1.0
_JOIN_S = 1.0
# Talks further apart than this: we were stopped, or the network was; nobody else's silence means anything.
_OWN_GAP_S = 2.5
KEEPER = 0
"""The host that keeps the store, by node rank, where workers may go on without a host."""


def beat_key(number: int) -> str:
    """Return where a launcher shows its signs of life: a counter, and its wall clock in seconds."""
    return f"beat/{number}"


class Others(Protocol):
    """Who goes on, where workers may go on without a host."""

    @property
    def hosts(self) -> Sequence[int]:
        """The hosts that go on, by node rank."""

    @property
    def is_armed(self) -> bool:
        """Whether workers can go on without a host that is silent, also the one that keeps this store."""


@final
@dataclass(slots=True)
class Attempt:
    """One attempt of all hosts, as the peer monitor sees it."""

    values: SharedValues  #: Of this attempt alone.
    numbers: list[int]  #: Of the launchers, by node rank.
    node_rank: int  #: Of this host.
    #: Asks how many hosts have come meanwhile, given how many have been left out; None where another host asks.
    num_waiting: Callable[[int], int] | None
    others: Others | None = None  #: Where workers may go on without a host.
    #: Of the hosts, by node rank, as far as they are known.
    endings: dict[int, NodeEnding] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)  #: Hosts that do not answer.
    left_out: set[int] = field(default_factory=set)  #: Hosts that the workers of the others go on without.

    def ending_of(self, node: int) -> NodeEnding | None:
        """Return how it ended on a host, None as long as it has not."""
        if node in self.left_out:
            return NodeEnding(kind="done")  # the others have done what was its workers' to do
        if node in self.lost and node not in self.endings:
            return NodeEnding(kind="lost")
        return self.endings.get(node)


@final
class PeerMonitor:
    """Shows signs of life, listens for those of the others, and passes on what concerns the workers."""

    def __init__(self, values: SharedValues, number: int, silence_s: float, signals: Signals) -> None:
        self.cut_off = ""  #: Why the store cannot be reached any more; empty while it can.
        self._number, self._silence_s, self._signals = number, silence_s, signals
        self._attempt: Attempt | None = None
        self._pulse = RecentBeats(silence_s)
        self._told: set[str] = set()
        self._count = 0
        self._contact_s = self._talked_s = self._looked_s = self._called_s = time.monotonic()
        self._stopped = threading.Event()
        self._values = values.guarded(lambda: "it has been closed" if self._stopped.is_set() else "")
        acts = (self._talk_on, self._watch_contact)
        self._threads = [threading.Thread(target=act, name="unisono-peer_monitor", daemon=True) for act in acts]
        for thread in self._threads:
            thread.start()

    def enter(self, attempt: Attempt) -> None:
        """Watch over an attempt from now on."""
        self._pulse.forget()
        self._told = set()
        self._attempt = attempt

    def leave(self) -> None:
        """Watch over no attempt."""
        self._attempt = None

    def close(self) -> None:
        """Fall silent; safe to call twice."""
        self._stopped.set()
        for thread in self._threads:  # one that waits for a store out of reach ends with the process
            thread.join(_JOIN_S)

    def _talk_on(self) -> None:
        while not self._stopped.wait(_TALK_S):
            try:
                self._talk()
            except PeerLost as error:
                if not self._can_do_without():
                    self.cut(f"the connection to the store broke: {error}")
                    return

    def _talk(self) -> None:
        attempt = self._attempt
        others = None if attempt is None else attempt.others
        if others is not None and KEEPER not in others.hosts:
            return  # whoever answers there now is another one, with another attempt
        self._count += 1
        self._values.put(beat_key(self._number), [self._count, time.time()])
        now = self._contact_s = time.monotonic()
        if now - self._talked_s > _OWN_GAP_S:
            self._pulse.forget()
        self._talked_s = now
        if attempt is None:
            return
        for node, number in enumerate(attempt.numbers):
            if others is not None and node not in others.hosts:
                attempt.left_out.add(node)
            else:
                self._listen(attempt, node, number, now)
        is_over = any(ending.kind == "done" for ending in attempt.endings.values())
        may_come = not is_over and (others is None or others.is_armed)  # all have begun their steps
        if attempt.num_waiting and may_come and now - self._looked_s > _LOOK_FOR_NEWCOMERS_S:
            self._looked_s = now
            if attempt.num_waiting(len(attempt.left_out)):
                attempt.values.settle("call", "a host has come")
        self._pass_on(attempt)

    def _listen(self, attempt: Attempt, node: int, number: int, now: float) -> None:
        """Look how it has ended on a host, and whether it shows signs of life."""
        if node not in attempt.endings and (told := attempt.values.look(f"ending/{node}")) is not None:
            attempt.endings[node] = NodeEnding.unpacked(told)
        if node != attempt.node_rank and node not in attempt.endings:
            self._pulse.hear(number, self._values.look(beat_key(number)), now)
            is_judged = attempt.others is not None and attempt.others.is_armed  # by `live.relay`
            if self._pulse.is_silent(number, now) and not is_judged:
                attempt.lost.add(node)

    def _pass_on(self, attempt: Attempt) -> None:
        """Tell the supervisor what its workers must know, once each."""
        if attempt.node_rank in attempt.endings:
            return
        if attempt.lost:
            self._call("a host is lost")
        for node, ending in attempt.endings.items():
            # Those that stop between two steps have agreed on it with our workers.
            if ending.kind in ("failed", "ended", "interrupted", "lost"):
                self._call(f"the workers of host {node} have ended")
        now = time.monotonic()
        if now - self._called_s > _LOOK_FOR_NEWCOMERS_S and attempt.values.look("call") is not None:
            self._called_s = now  # again and again: it may not be the time yet
            self._signals.events.put(Called("a host has come", is_gentle=True))

    def _call(self, why: str) -> None:
        if "hard" not in self._told:
            self._told.add("hard")
            self._signals.events.put(Called(why))

    def _watch_contact(self) -> None:
        """Notice that the talking thread waits for an answer that does not come."""
        looked = time.monotonic()
        while not self._stopped.wait(_TALK_S):
            now = time.monotonic()
            if now - looked > _OWN_GAP_S or self._can_do_without():
                self._contact_s = now
            looked = now
            if self._silence_s and now - self._contact_s > self._silence_s:
                self.cut(f"the store has not answered for {now - self._contact_s:.0f} s")
                return

    def _can_do_without(self) -> bool:
        """Whether it is not ours to say what the loss of this store means: the workers may go on without its host."""
        others = None if self._attempt is None else self._attempt.others
        return others is not None and (others.is_armed or KEEPER not in others.hosts)

    def cut(self, why: str) -> None:
        """End the workers of this host: it is cut off from the others."""
        if not self._stopped.is_set() and not self.cut_off:
            self.cut_off = why
            self._signals.events.put(Called(why))
