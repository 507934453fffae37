"""What a launcher and its workers say to each other while a run is at work: lines of JSON, over a socket for each.

In: messages as plain values. Out: what workers have said, as `Told`. Must not import torch.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

LIVE_VARIABLE = "UNISONO_LIVE"
"""Descriptor of a worker's socket to its launcher."""


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
        self._sockets: dict[int, socket.socket] = {}
        self._threads: dict[int, threading.Thread] = {}

    def open(self, rank: int) -> socket.socket:
        """Return the worker's end, to be inherited by it and then closed here."""
        ours, theirs = socket.socketpair()
        ours.settimeout(None)
        self._sockets[rank] = ours
        thread = threading.Thread(target=self._hear, args=(rank, ours), name="unisono-live", daemon=True)
        self._threads[rank] = thread
        thread.start()
        return theirs

    def hear_out(self, rank: int) -> None:
        """Return when all has been heard that a worker said which has ended: that it had finished comes before it."""
        with contextlib.suppress(OSError):
            self._sockets[rank].shutdown(socket.SHUT_RD)  # what is in the socket can still be read
        self._threads[rank].join()

    def forget(self, rank: int) -> None:
        """Close the socket of a worker that has ended, and has been heard out; by the thread that sends."""
        with contextlib.suppress(OSError):
            self._sockets[rank].close()

    def send(self, rank: int, message: dict[str, Any]) -> None:
        """Say something to a worker, which may be gone or never read it."""
        with contextlib.suppress(OSError):
            self._sockets[rank].send(json.dumps(message).encode() + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """End all threads; what comes later is not heard."""
        for own in self._sockets.values():
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)
            own.close()

    def _hear(self, rank: int, own: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), own.makefile("rb") as lines:
            for line in lines:
                self._put(Told(rank, json.loads(line)))
