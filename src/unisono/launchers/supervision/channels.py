"""What a launcher and its workers say to each other while a run is at work: lines of JSON, over a socket for each.

In: messages as plain values. Out: what workers have said, as `Told`. Must not import torch.
"""

import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

LIVE_VARIABLE = "UNISONO_LIVE"
"""Descriptor of a worker's socket to its launcher."""
LEADERS_ERROR_VARIABLE = "UNISONO_LEADERS_ERROR"
"""Descriptor of the launcher's error output, for whoever becomes the leader."""
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Told:
    """A worker has said something."""

    rank: int
    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HostSaid:
    """The launcher of another host has said something; or it is silent: ``{"silent": SECONDS}``."""

    node: int
    message: dict[str, Any]


@final
class Channels:
    """Sockets between the launcher and its workers, by rank; messages are lines of JSON. `put` takes what a worker
    says, and is called in threads.
    """

    def __init__(self, put: Callable[[Told], None]) -> None:
        self._put = put
        self._channels: dict[int, _Channel] = {}

    def open(self, rank: int) -> socket.socket:
        """Return the worker's end, to be inherited by it and then closed here."""
        ours, theirs = socket.socketpair()
        self._channels[rank] = _Channel(rank, ours, self._put)
        return theirs

    def hear_out(self, rank: int) -> None:
        """Return when all has been heard that a worker said which has ended, and all that others had said before.

        That it had finished comes before its end; and so does that others had begun what it has met them in.
        """
        self._channels[rank].end(socket.SHUT_RD)  # what is in the socket can still be read
        for channel in [*self._channels.values()]:
            channel.take_in()

    def forget(self, rank: int) -> None:
        """Close the socket of a worker that has ended, and has been heard out; by the thread that sends."""
        self._channels[rank].close()

    def send(self, rank: int, message: dict[str, Any]) -> None:
        """Say something to a worker, which may be gone or never read it."""
        self._channels[rank].send(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """End all threads; what comes later is not heard."""
        for channel in self._channels.values():
            channel.end(socket.SHUT_RDWR)
            channel.close()


@final
class _Channel:
    """The launcher's end of one socket; what comes is passed on in order, whichever thread takes it in."""

    def __init__(self, rank: int, own: socket.socket, put: Callable[[Told], None]) -> None:
        self._rank, self._own, self._put = rank, own, put
        own.settimeout(None)
        self._lock, self._rest = threading.Lock(), b""
        self._thread = threading.Thread(target=self._hear, name="unisono-live", daemon=True)
        self._thread.start()

    def take_in(self) -> bool:
        """Pass on what has come by now; return whether more may come."""
        with self._lock:
            try:
                while found := self._own.recv(_READ_BYTES, socket.MSG_DONTWAIT):
                    *lines, self._rest = (self._rest + found).split(b"\n")
                    for line in lines:
                        self._put(Told(self._rank, json.loads(line)))
            except BlockingIOError:
                return True
            except (OSError, ValueError):  # it has ended without reading all; what comes is no JSON
                pass
            return False

    def _hear(self) -> None:
        ready = select.poll()
        ready.register(self._own, select.POLLIN)
        while self.take_in():
            ready.poll()

    def send(self, line: bytes) -> None:
        """Send a line to a worker, which may be gone or never read it."""
        with contextlib.suppress(OSError):
            self._own.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def end(self, how: int) -> None:
        """Return when all has been heard that has come, and nothing can come any more."""
        with contextlib.suppress(OSError):
            self._own.shutdown(how)
        self._thread.join()

    def close(self) -> None:
        with self._lock:
            self._own.close()
