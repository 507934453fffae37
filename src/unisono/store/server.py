"""The server of the store: one thread that answers whoever has shown that he knows the key, and drops everybody else.

In: a listening socket and the key. A connection that has proved nothing owns a greeting and at most 72 bytes of our
memory, for at most `ServerLimits.handshake_s`; its bytes are compared, never looked into. Afterwards a connection asks
one question at a time.
"""

import errno
import heapq
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from unisono.store import wire
from unisono.store.questions import Answer, Wait, answer, wait_over
from unisono.store.table import KeyTable

_RECEIVE_BYTES = 1 << 16
_MOST_UNSENT_BYTES = 2 * wire.MOST_BODY_BYTES
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_ROOM_S = 0.2
_MOST_TOLD = 16

_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ServerLimits:
    """What a server allows."""

    connections: int = 8192  #: All together.
    strangers: int = 256  #: That have proved nothing yet; the oldest makes room for the next.
    handshake_s: float = 5.0  #: Longest time until they have.


@final
class _Peer:
    """One connection."""

    def __init__(self, sock: socket.socket, address: str, deadline_s: float) -> None:
        self.sock, self.address, self.deadline_s = sock, address, deadline_s
        self.hello = wire.hello()
        self.received = bytearray()
        self.unsent = bytearray(self.hello)
        self.read: wire.Channel | None = None  # None: nothing is proved
        self.write: wire.Channel | None = None
        self.wait: Wait | None = None
        self.is_open = True


@final
class Server:
    """Serves a table until it is closed.

    Args:
        listener: Bound and listening; the server closes it.
        key: See `secret.key_of`.
        tell: Takes a line about a stranger, at most one for each address, and not many.
        limits: See there.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        tell: Callable[[str], None] | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        self._listener, self._key, self._tell, self._limits = listener, key, tell, limits or ServerLimits()
        self.port = int(listener.getsockname()[1])  #: Where it listens.
        self.refused = 0  #: How many connections have been refused.
        self._table = KeyTable()
        self._peers: dict[_Peer, None] = {}
        self._strangers: dict[_Peer, None] = {}  # the oldest first
        self._waiting: dict[bytes, dict[_Peer, None]] = {}
        self._deadlines: list[tuple[float, int, _Peer]] = []
        self._count = 0
        self._told: set[str] = set()
        self._accepts_again_s: float | None = None
        self._selector = selectors.DefaultSelector()
        self._alarm, self._bell = socket.socketpair()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="unisono-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it with all connections; safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._alarm.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._is_closed:
                for found, _ in self._selector.select(self._patience()):
                    if found.fileobj is self._listener:
                        self._accept()
                    elif found.data is not None and found.data.is_open:
                        self._attend(found.data)
                self._look_at_clock()
        finally:
            for peer in list(self._peers):
                self._drop(peer)
            self._selector.close()
            for sock in (self._listener, self._bell):
                sock.close()

    def _patience(self) -> float | None:
        soonest = [self._deadlines[0][0]] if self._deadlines else []
        if self._accepts_again_s is not None:
            soonest.append(self._accepts_again_s)
        return max(0.0, min(soonest) - time.monotonic()) if soonest else None

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        if self._accepts_again_s is not None and now >= self._accepts_again_s:
            self._accepts_again_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline_s, _, peer = heapq.heappop(self._deadlines)
            if not peer.is_open or peer.deadline_s != deadline_s:
                continue
            if peer.read is None:
                self._refuse(peer, f"has proved nothing in {self._limits.handshake_s:g} s")
            elif peer.wait is not None:
                self._reply(peer, wait_over(self._table, peer.wait))

    def _set_deadline(self, peer: _Peer, deadline_s: float) -> None:
        peer.deadline_s = deadline_s
        self._count += 1
        heapq.heappush(self._deadlines, (deadline_s, self._count, peer))

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._selector.unregister(self._listener)
                self._accepts_again_s = time.monotonic() + _NO_ROOM_S
            return
        if len(self._strangers) >= self._limits.strangers:
            self._refuse(next(iter(self._strangers)), "was one of too many at once")
        if len(self._peers) >= self._limits.connections:
            sock.close()
            return
        sock.setblocking(False)
        prepare(sock)
        peer = _Peer(sock, str(address[0]), 0.0)
        self._peers[peer] = self._strangers[peer] = None
        self._set_deadline(peer, time.monotonic() + self._limits.handshake_s)
        self._selector.register(sock, selectors.EVENT_READ, peer)
        self._send(peer)

    def _attend(self, peer: _Peer) -> None:
        if peer.unsent:
            self._send(peer)
        try:
            received = peer.sock.recv(wire.ANSWER_BYTES if peer.read is None else _RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)
            return
        if not received:
            self._drop(peer)
            return
        peer.received += received
        if peer.read is None:
            self._welcome(peer)
        elif peer.wait is not None:
            self._drop(peer)  # it asks before it is answered: none of our clients
        else:
            self._hear(peer)

    def _welcome(self, peer: _Peer) -> None:
        """Believe a stranger, refuse it, or wait for more of its answer."""
        answer = bytes(peer.received)
        if answer[: len(wire.MAGIC)] != wire.MAGIC[: len(answer)]:
            self._refuse(peer, "does not speak the protocol of this store")
            return
        if len(answer) < wire.ANSWER_BYTES:
            return
        both = wire.Handshake(self._key, peer.hello, answer[: wire.HELLO_BYTES])
        if not wire.is_same(answer[wire.HELLO_BYTES : wire.ANSWER_BYTES], both.client_proof()):
            self._refuse(peer, "does not know the run's secret")
            return
        peer.read, peer.write = both.channels()
        peer.deadline_s = 0.0
        del self._strangers[peer]
        peer.unsent += both.server_proof()
        del peer.received[: wire.ANSWER_BYTES]
        self._send(peer)

    def _hear(self, peer: _Peer) -> None:
        """Answer the question that has come, if all of it has."""
        assert peer.read is not None
        if len(peer.received) < wire.HEAD_BYTES:
            return
        try:
            length = wire.body_bytes(bytes(peer.received[: wire.HEAD_BYTES]))
            end = wire.HEAD_BYTES + length
            if len(peer.received) < end + wire.MAC_BYTES:
                return
            body = peer.read.open(bytes(peer.received[wire.HEAD_BYTES : end]), bytes(peer.received[end:]))
            peer.received.clear()  # bytes behind the frame are a part of a wrong MAC
            fields = wire.unpack(body)
        except wire.Damaged:
            self._drop(peer)
            return
        found = answer(self._table, fields)
        if isinstance(found, Wait):
            peer.wait = found
            for key in set(found.keys):
                self._waiting.setdefault(key, {})[peer] = None
            self._set_deadline(peer, time.monotonic() + found.seconds)
            return
        self._reply(peer, found)
        for key in found.changed:
            for other in list(self._waiting.get(key, ())):
                if other.wait is not None and self._table.has(other.wait.keys):
                    self._reply(other, wait_over(self._table, other.wait))

    def _reply(self, peer: _Peer, found: Answer) -> None:
        self._forget_wait(peer)
        assert peer.write is not None
        peer.unsent += peer.write.seal(wire.pack(found.fields))
        if len(peer.unsent) > _MOST_UNSENT_BYTES:
            self._drop(peer)
            return
        self._send(peer)

    def _send(self, peer: _Peer) -> None:
        try:
            sent = peer.sock.send(peer.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(peer)
            return
        del peer.unsent[:sent]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if self._selector.get_key(peer.sock).events != events:
            self._selector.modify(peer.sock, events, peer)

    def _refuse(self, peer: _Peer, why: str) -> None:
        self.refused += 1
        has_spoken = bool(peer.received)  # who only probes, to see whether somebody listens, is no stranger
        self._drop(peer)
        if self._tell is not None and has_spoken and peer.address not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(peer.address)
            self._tell(f"refused a connection from {peer.address} to port {self.port}: it {why}.")

    def _forget_wait(self, peer: _Peer) -> None:
        if peer.wait is not None:
            for key in set(peer.wait.keys):
                waiting = self._waiting[key]
                del waiting[peer]
                if not waiting:
                    del self._waiting[key]
            peer.wait, peer.deadline_s = None, 0.0

    def _drop(self, peer: _Peer) -> None:
        if peer.is_open:
            peer.is_open = False
            self._forget_wait(peer)
            self._peers.pop(peer)
            self._strangers.pop(peer, None)
            self._selector.unregister(peer.sock)
            peer.sock.close()


def prepare(sock: socket.socket) -> None:
    """Let a connection answer at once, and end some day where the other side is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on one address of this machine."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)  # a second one that binds meanwhile fails here
    except OSError:
        listener.close()
        raise
    return listener
