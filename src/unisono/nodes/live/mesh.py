"""Words between the launchers of all hosts, each to each, and who answers: nobody's loss ends what the others say.

In: messages as plain values. Out: what others have said, in the order in which they said it, once; and for how long
each has not answered. Each launcher keeps a store of its own, with a key that only the launchers of this attempt have.
Others write there what they say, under numbered keys; in between they ask it, again and again, whether the hosts go on
without them. An answer is a sign of life. What has not reached another launcher when this one ends its part, it finds
with that question.
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
_LATE = 4  # times in the longest silence an answer that has not come is asked for over one more connection


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
        silence_s: Longest silence of a host that counts as in reach.
    """

    def __init__(
        self, node: int, places: Places, hear: Callable[[int, Any], None], left_out: Callable[[], None],
        silence_s: float,
    ) -> None:  # fmt: skip
        self._stopped, self._hear = threading.Event(), hear
        self._since_s = time.monotonic()  # when silence has begun to count
        self._clients = [Client(host, port, places.key) for host, port in places.stores]
        self._values = [SharedValues(client, "live", self._why_closed) for client in self._clients]
        self._own = self._values[node]
        others = [other for other in range(len(self._values)) if other != node]
        self._lines = {other: _Line((node, other), self._values, self._stopped, left_out) for other in others}
        late_s = silence_s / _LATE
        self._askers = [
            threading.Thread(target=line.ask_on, args=(late_s,), name="unisono-live-mesh", daemon=True)
            for line in self._lines.values()
        ]
        self._readers = [
            threading.Thread(target=functools.partial(self._read, other), name="unisono-live-mesh", daemon=True)
            for other in others
        ]

    def start(self) -> None:
        """Begin to hear."""
        for thread in (*self._readers, *self._askers, *(line.thread for line in self._lines.values())):
            thread.start()

    def send(self, node: int, word: Any) -> None:
        """Say something to another launcher, which may be gone; does not wait."""
        self._lines[node].words.put(word)

    def silent_s(self) -> dict[int, float]:
        """Return for how long each other launcher has answered no question, in seconds."""
        now = time.monotonic()
        return {node: now - max(line.answered_s, self._since_s) for node, line in self._lines.items()}

    def forget(self) -> None:
        """Let silence count from now on: before, nobody has listened."""
        self._since_s = time.monotonic()

    def leave_out(self, node: int) -> None:
        """Let a host be told, whenever it asks again, that the others go on without it."""
        with contextlib.suppress(PeerLost):  # our own store is being closed
            self._own.put(f"out/{node}", True)

    def close(self, hosts: Collection[int]) -> None:
        """Say what has not been said yet to these hosts, and fall silent; safe to call twice."""
        deadline = time.monotonic() + _JOIN_S
        lines = {} if self._stopped.is_set() else {node: line for node, line in self._lines.items() if node in hosts}
        for line in lines.values():
            line.words.put(None)
        for line in lines.values():
            line.thread.join(max(0.0, deadline - time.monotonic()))
        self._stopped.set()
        deadline = time.monotonic() + _JOIN_S
        for thread in (*self._readers, *self._askers, *(line.thread for line in self._lines.values())):
            thread.join(max(0.0, deadline - time.monotonic()))  # one that connects to a lost host ends with the process
        for node, line in lines.items():
            number, unsaid = line.unsaid()
            if unsaid:
                with contextlib.suppress(PeerLost):  # our own store is being closed
                    self._own.guarded(None).put(f"out/{node}", [number, unsaid])
        for client in self._clients:
            client.close()

    def _why_closed(self) -> str:
        return "this launcher has ended its part" if self._stopped.is_set() else ""

    def _read(self, other: int) -> None:
        number = 0
        while not self._stopped.is_set():
            key = f"said/{other}/{number}"
            try:
                if (word := self._own.look(key, _WAIT_S)) is not None:
                    number += 1
                    self._hear(other, word)
                    self._own.forget(key)
            except PeerLost:  # our own store is being closed, or has no room for a connection now
                self._stopped.wait(_BEAT_S)


@final
class _Line:
    """What is said to one launcher, and asked of it.

    Args:
        nodes: Who says it, to whom.
        values: In the launchers' stores.
        stopped: Ends it.
        left_out: As `Mesh` has it.
    """

    def __init__(
        self, nodes: tuple[int, int], values: Sequence[SharedValues], stopped: threading.Event,
        left_out: Callable[[], None],
    ) -> None:  # fmt: skip
        self.words: queue.SimpleQueue[Any] = queue.SimpleQueue()  # None: the last one
        self._next = 0, list[Any]()  # number of the next word, and the word until it is answered: read at once
        self.answered_s, self._spare = time.monotonic(), threading.BoundedSemaphore(_LATE)
        self._node, self._other = nodes
        self._own, self._values = (values[node] for node in nodes)
        self._stopped, self._left_out = stopped, left_out
        self.thread = threading.Thread(target=self._talk, name="unisono-live-mesh", daemon=True)

    def unsaid(self) -> tuple[int, list[Any]]:
        """Return the words that have not been answered, when nothing is said any more, and the number of the first."""
        number, words = self._next
        with contextlib.suppress(queue.Empty):
            while True:
                words.append(self.words.get_nowait())
        return number, [word for word in words if word is not None]

    def _talk(self) -> None:
        is_told = False
        while not self._stopped.is_set():
            word = None
            with contextlib.suppress(queue.Empty):
                if (word := self.words.get(timeout=_BEAT_S)) is None:
                    return
            if word is not None:
                self._say(word)
            elif (found := self._ask()) and not is_told:
                is_told = self._take(found)

    def ask_on(self, late_s: float) -> None:
        """Ask over one more connection, again and again, while an answer is late.

        TCP sends a lost packet again after 0.2 s, 0.4 s more, 0.8 s more, ...; all on that connection waits meanwhile,
        and that is no silence of a host.
        """
        while not self._stopped.wait(late_s):
            is_late = time.monotonic() - self.answered_s > late_s + _BEAT_S
            if is_late and self._spare.acquire(blocking=False):
                threading.Thread(target=self._ask_again, name="unisono-live-mesh", daemon=True).start()

    def _ask_again(self) -> None:
        try:
            if self._ask() is True:
                self._left_out()
        finally:
            self._spare.release()

    def _say(self, word: Any) -> None:
        """Say it until it is answered: one that has been taken already is not looked for again."""
        number, _ = self._next
        self._next = number, [word]
        while not self._stopped.is_set():
            asked_s = time.monotonic()
            try:
                self._values.put(f"said/{self._node}/{number}", word)
            except PeerLost:
                self._stopped.wait(_BEAT_S)
                continue
            self.answered_s = max(self.answered_s, asked_s)
            self._next = number + 1, []
            break

    def _ask(self) -> Any:
        asked_s = time.monotonic()
        try:
            found = self._values.look(f"out/{self._node}")
        except PeerLost:
            return None
        self.answered_s = max(self.answered_s, asked_s)
        return found

    def _take(self, found: Any) -> bool:
        """Take in that this host is left out, or what the other launcher could not say any more; whether it has."""
        if found is True:
            self._left_out()
            return True
        number, words = found
        try:
            for later, word in enumerate(words):
                self._own.put(f"said/{self._other}/{number + later}", word)
        except PeerLost:  # see `Mesh._read`
            return False
        return True
