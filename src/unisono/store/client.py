"""The client of the store: proves that it knows the key, asks, and never waits without a limit.

Each question takes a connection of its own from those that are free, so threads do not wait for each other, and a
wait may be given up at any moment. Safe after a fork: the child makes connections of its own.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import final

from unisono.store import wire
from unisono.store.questions import LATE, NO
from unisono.store.server import prepare

_POLL_S = 0.1
_MOST_FREE = 8
_HANDSHAKE_S = 10.0
_TRY_S = 2.0  # to connect, where the wait may be given up


class StoreLost(ConnectionError):
    """The store cannot be reached, does not answer, or the wait was given up."""


class NotOurStore(StoreLost):
    """What answers is no store of ours, or does not believe us: it has another secret."""


class StoreLate(TimeoutError):
    """A key has not come in time."""


class StoreRefused(RuntimeError):
    """The store does not take a value: it is too large, say."""


@final
class Client:
    """Asks a store; any number of threads may."""

    def __init__(self, host: str, port: int, key: bytes, *, answer_s: float = 60.0) -> None:
        self._where, self._key, self._answer_s = (host, port), key, answer_s
        self._lock = threading.Lock()
        self._free: list[_Connection] = []
        self._pid = os.getpid()
        self._is_closed = False

    def ask(self, *question: bytes, wait_s: float = 0.0, cut_off: Callable[[], str] | None = None) -> list[bytes]:
        """Return the answer to one question.

        Args:
            *question: Name and arguments, see `questions`.
            wait_s: How long the question itself may wait.
            cut_off: Asked while the answer has not come: why to give up, empty for not.

        Raises:
            StoreLost: There is no answer.
            StoreLate: The wait was in vain.
            StoreRefused: The store says no.
        """
        deadline_s = time.monotonic() + wait_s + self._answer_s
        connection = self._take(deadline_s, cut_off)
        try:
            answer = connection.ask(question, deadline_s)
        except BaseException:  # also KeyboardInterrupt: the answer may still come, and belongs to nobody
            connection.close()
            raise
        self._put_back(connection)
        if answer[0] == LATE:
            raise StoreLate(f"nothing about {_names(question)} within {wait_s:g} s")
        if answer[0] == NO:
            reason = answer[-1].decode(errors="replace")
            raise StoreRefused(f"the store at {self._where[0]}:{self._where[1]} refuses {_names(question)}: {reason}")
        return answer[1:]

    def get(self, key: bytes, wait_s: float = 0.0, cut_off: Callable[[], str] | None = None) -> bytes:
        """Return a value, waiting for it; see `ask`."""
        return self.ask(b"get", milliseconds(wait_s), key, wait_s=wait_s, cut_off=cut_off)[0]

    def close(self) -> None:
        """Close all connections, those in use after their answer; safe to call twice."""
        with self._lock:
            free, self._free, self._is_closed = self._free, [], True
        for connection in free:
            connection.close()

    def _take(self, deadline_s: float, cut_off: Callable[[], str] | None) -> "_Connection":
        with self._lock:
            if self._pid != os.getpid():  # forked: those connections are the parent's
                self._pid, self._free = os.getpid(), []
            connection = self._free.pop() if self._free else None
        if connection is None:
            return _Connection(self._where, self._key, min(deadline_s, time.monotonic() + _HANDSHAKE_S), cut_off)
        connection.cut_off = cut_off
        return connection

    def _put_back(self, connection: "_Connection") -> None:
        with self._lock:
            if self._pid == os.getpid() and len(self._free) < _MOST_FREE and not self._is_closed:
                self._free.append(connection)
                return
        connection.close()


@final
class _Connection:
    def __init__(
        self, where: tuple[str, int], key: bytes, deadline_s: float, cut_off: Callable[[], str] | None
    ) -> None:
        self.cut_off = cut_off
        self._name = f"{where[0]}:{where[1]}"
        self._sock = self._reach(where, deadline_s)
        try:
            prepare(self._sock)
            self._shake_hands(key, deadline_s)
        except BaseException:
            self.close()
            raise

    def _reach(self, where: tuple[str, int], deadline_s: float) -> socket.socket:
        while True:
            left_s = max(0.1, deadline_s - time.monotonic())
            try:
                return socket.create_connection(where, left_s if self.cut_off is None else min(left_s, _TRY_S))
            except OSError as error:
                is_over = not isinstance(error, TimeoutError) or time.monotonic() >= deadline_s
                why = self.cut_off() if self.cut_off is not None else ""
                if is_over or why:
                    raise StoreLost(why or f"no connection to {self._name}: {error.strerror or error}") from error

    def _shake_hands(self, key: bytes, deadline_s: float) -> None:
        try:
            of_server = self._receive(wire.HELLO_BYTES, deadline_s)
            of_client = wire.hello()
            both = wire.Handshake(key, of_server, of_client)
        except wire.Damaged as error:
            raise NotOurStore(f"what answers at {self._name} is no store of unisono") from error
        self._send(of_client + both.client_proof(), deadline_s)
        try:
            proof = self._receive(wire.MAC_BYTES, deadline_s)
        except StoreLost as error:
            if not self._is_ended:
                raise
            raise NotOurStore(f"the store at {self._name} has another secret") from error
        if not wire.is_same(proof, both.server_proof()):
            raise NotOurStore(f"what answers at {self._name} does not know the run's secret")
        self._write, self._read = both.channels()

    def ask(self, question: Sequence[bytes], deadline_s: float) -> list[bytes]:
        self._send(self._write.seal(wire.pack(question)), deadline_s)
        try:
            length = wire.body_bytes(self._receive(wire.HEAD_BYTES, deadline_s))
            body = self._receive(length, deadline_s)
            return wire.unpack(self._read.open(body, self._receive(wire.MAC_BYTES, deadline_s)))
        except wire.Damaged as error:
            raise StoreLost(f"{self._name} has sent {error}") from error

    def close(self) -> None:
        self._sock.close()

    _is_ended = False

    def _receive(self, count: int, deadline_s: float) -> bytes:
        pieces = bytearray()
        while len(pieces) < count:
            with self._trying(deadline_s):
                piece = self._sock.recv(count - len(pieces))
                if not piece:
                    self._is_ended = True
                    raise StoreLost(f"{self._name} has closed the connection")
                pieces += piece
        return bytes(pieces)

    def _send(self, data: bytes, deadline_s: float) -> None:
        rest = memoryview(data)
        while rest:
            with self._trying(deadline_s):
                rest = rest[self._sock.send(rest) :]

    @contextlib.contextmanager
    def _trying(self, deadline_s: float) -> Iterator[None]:
        """Let a call of the socket wait for a moment, or to the end where nobody may give up."""
        left_s = deadline_s - time.monotonic()
        if self.cut_off is not None:
            left_s = min(left_s, _POLL_S)
        self._sock.settimeout(max(0.001, left_s))
        try:
            yield
        except TimeoutError as error:
            if self.cut_off is not None and (why := self.cut_off()):
                raise StoreLost(why) from error
            if time.monotonic() >= deadline_s:
                raise StoreLost(f"{self._name} does not answer") from error
        except StoreLost:
            raise
        except OSError as error:
            raise StoreLost(f"the connection to {self._name} broke: {error.strerror or error}") from error


def milliseconds(seconds: float) -> bytes:
    """Return a time as questions carry it."""
    return b"%d" % max(0, round(seconds * 1000))


def _names(question: Sequence[bytes]) -> str:
    keys = question[2:] if question[0] in (b"get", b"wait") else question[1:2]
    shown = ", ".join(repr(key.decode(errors="replace"))[:200] for key in keys[:5])
    return shown + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
