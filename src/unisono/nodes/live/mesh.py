"""Words between the launchers of all hosts, each to each, and who answers: nobody's loss ends what the others say.

In: messages as plain values. Out: what others have said, in the order in which they said it, once; and for how long
each has not answered. Each launcher keeps a store of its own, with a key that only the launchers of this attempt have.
Others write there what they say, under numbered keys; in between they ask it, again and again, whether the hosts go on
without them. An answer is a sign of life.
"""

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

from unisono.errors import PeerLost
from unisono.nodes.values import SharedValues
from unisono.store.client import Client

_BEAT_S = 0.1
_WAIT_S = 0.2
_JOIN_S = 1.0


@final
@dataclass(frozen=True, slots=True)
class Places:
    """Where the launchers of an attempt keep their stores, by node rank, and the key to them."""

    stores: Sequence[tuple[str, int]]
    key: bytes


@final
class Mesh:
    """One launcher's lines to all others.

    Args:
        node: Node rank of this host.
        places: Of all stores, this launcher's own among them.
        hear: Takes who has said something, and what; called in threads, one word of a host after the other.
        left_out: Called where another launcher says that the hosts go on without this one.
    """

    def __init__(
        self, node: int, places: Places, hear: Callable[[int, Any], None], left_out: Callable[[], None]
    ) -> None:
        self._stopped, self._hear = threading.Event(), hear
        self._clients = [Client(host, port, places.key) for host, port in places.stores]
        self._values = [SharedValues(client, "live", self._why_closed) for client in self._clients]
        self._own = self._values[node]
        others = [other for other in range(len(self._values)) if other != node]
        self._lines = {other: _Line(self._values[other], node, self._stopped, left_out) for other in others}
        self._readers = [
            threading.Thread(target=functools.partial(self._read, other), name="unisono-live-mesh", daemon=True)
            for other in others
        ]

    def start(self) -> None:
        """Begin to hear."""
        for thread in (*self._readers, *(line.thread for line in self._lines.values())):
            thread.start()

    def send(self, node: int, word: Any) -> None:
        """Say something to another launcher, which may be gone; does not wait."""
        self._lines[node].words.put(word)

    def silent_s(self) -> dict[int, float]:
        """Return for how long each other launcher has answered no question, in seconds."""
        now = time.monotonic()
        return {node: now - line.answered_s for node, line in self._lines.items()}

    def forget(self) -> None:
        """Let silence count from now on: before, nobody has listened."""
        for line in self._lines.values():
            line.answered_s = time.monotonic()

    def leave_out(self, node: int) -> None:
        """Let a host be told, whenever it asks again, that the others go on without it."""
        with contextlib.suppress(PeerLost):  # our own store is being closed
            self._own.put(f"out/{node}", True)

    def close(self, hosts: Collection[int]) -> None:
        """Say what has not been said yet to these hosts, and fall silent; safe to call twice."""
        deadline, lines = time.monotonic() + _JOIN_S, [self._lines[node] for node in hosts if node in self._lines]
        for line in lines if not self._stopped.is_set() else ():
            line.words.put(None)
        for line in lines:
            line.thread.join(max(0.0, deadline - time.monotonic()))
        self._stopped.set()
        deadline = time.monotonic() + _JOIN_S
        for thread in (*self._readers, *(line.thread for line in self._lines.values())):
            thread.join(max(0.0, deadline - time.monotonic()))  # one that connects to a lost host ends with the process
        for client in self._clients:
            client.close()

    def _why_closed(self) -> str:
        return "this launcher has ended its part" if self._stopped.is_set() else ""

    def _read(self, other: int) -> None:
        number = 0
        with contextlib.suppress(PeerLost):  # our own store is being closed
            while not self._stopped.is_set():
                word = self._own.take(f"said/{other}/{number}", _WAIT_S)
                if word is not None:
                    number += 1
                    self._hear(other, word)


@final
class _Line:
    """What is said to one launcher."""

    def __init__(self, values: SharedValues, node: int, stopped: threading.Event, left_out: Callable[[], None]) -> None:
        self.words: queue.SimpleQueue[Any] = queue.SimpleQueue()  # None: the last one
        self.answered_s = time.monotonic()
        self._values, self._node, self._stopped, self._left_out = values, node, stopped, left_out
        self.thread = threading.Thread(target=self._talk, name="unisono-live-mesh", daemon=True)

    def _talk(self) -> None:
        number, is_told = 0, False
        while not self._stopped.is_set():
            word = None
            with contextlib.suppress(queue.Empty):
                if (word := self.words.get(timeout=_BEAT_S)) is None:
                    return
            if word is not None:
                number = self._say(number, word)
            elif self._ask() and not is_told:
                is_told = True
                self._left_out()

    def _say(self, number: int, word: Any) -> int:
        """Say it until it is answered: one that has been taken already is not looked for again."""
        while not self._stopped.is_set():
            asked_s = time.monotonic()
            try:
                self._values.put(f"said/{self._node}/{number}", word)
            except PeerLost:
                self._stopped.wait(_BEAT_S)
                continue
            self.answered_s = asked_s
            break
        return number + 1

    def _ask(self) -> bool:
        asked_s = time.monotonic()
        try:
            is_out = self._values.look(f"out/{self._node}") is not None
        except PeerLost:
            return False
        self.answered_s = asked_s
        return is_out
