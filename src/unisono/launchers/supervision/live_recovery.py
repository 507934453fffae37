"""The launcher's side of live recovery: a worker dies, and the others finish the step without it.

In: how workers end, and what they say over their sockets. Out: orders to them, as `membership.Membership` decides, and
whether a death is theirs to live through. Where it is not, everything is as without: an attempt ends, and a restart may
follow. Must not import torch.
"""

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from unisono.launchers.membership import Form, Halt, Leave, Membership, Order

LIVE_VARIABLE = "UNISONO_LIVE"
"""Descriptor of a worker's socket to its launcher."""

# Until the others have frozen: one may be in the midst of a long step; as long as ranks wait for one that lives.
_GATHER_S = 300.0
_FORM_S = 20.0  # from then on nobody computes


@dataclass(frozen=True, slots=True)
class Told:
    """A worker has said something."""

    rank: int
    message: dict[str, Any]


@final
class Channels:
    """Sockets between the launcher and its workers, by rank; messages are lines of JSON.

    Args:
        put: Takes what a worker says; called in threads.
    """

    def __init__(self, put: Callable[[Told], None]) -> None:
        self._put = put
        self._sockets: dict[int, socket.socket] = {}

    def open(self, rank: int) -> socket.socket:
        """Return the worker's end, to be inherited by it and then closed here."""
        ours, theirs = socket.socketpair()
        ours.settimeout(None)
        self._sockets[rank] = ours
        threading.Thread(target=self._hear, args=(rank, ours), name="unisono-live", daemon=True).start()
        return theirs

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


@final
class LiveRecovery:
    """Decides which deaths the others live through.

    Args:
        ranks: Of the workers; their numbers as members.
        send: Takes a rank and a message for it.
        tell: Takes what is worth knowing, in words.

    Attributes:
        excluded: Ranks whose deaths have been lived through.
    """

    def __init__(self, ranks: range, send: Callable[[int, dict[str, Any]], None], tell: Callable[[str], None]) -> None:
        self._send, self._tell = send, tell
        self._members = Membership(tuple(ranks))
        self._open: set[int] = set()
        self._why_not = ""
        self._deadline = 0.0
        self._pending: set[int] = set()
        self._places: set[tuple[int, int]] = set()
        self.excluded: set[int] = set()

    @property
    def is_forming(self) -> bool:
        """Whether a world is being formed."""
        return self._members.phase in ("gather", "form")

    def heard(self, told: Told) -> str:
        """Take in what a worker says; return why it cannot be gone on with, empty where it can."""
        rank, message = told.rank, told.message
        if "open" in message:
            (self._open.add if message["open"] else self._open.discard)(rank)
            if message["why"] and not self._why_not:
                self._why_not = message["why"]
                self._tell(off(self._why_not))
        elif "ready" in message:
            known = {name: message[name] for name in ("passed", "refusal", "offer")}
            return self._do(self._members.heard_ready(message["ready"], rank, **known))
        elif "up" in message:
            was_forming = self.is_forming
            reason = self._do(self._members.heard_up(message["up"], rank))
            if was_forming and not self.is_forming:
                self.excluded |= self._pending
                self._pending = set()
            return reason
        return ""

    def ended(self, rank: int) -> str:
        """Take into account that a worker has ended well; returns as `heard`."""
        return self._do(self._members.ended(rank))

    def died(self, rank: int, code: int, place: tuple[int, int], *, has_report: bool) -> str:
        """Take a death into account.

        Args:
            rank: Whose.
            code: Exit code; -n for signal n.
            place: The step that it was in, and the replica that it was computing; -1 where unknown.
            has_report: Whether it has left the report of an exception.

        Returns:
            Why the others cannot go on without it; empty where they can.
        """
        others = [member for member in self._members.members if member != rank]
        if code >= 0 or has_report:
            # The same error would come to every rank that takes over.
            return self._leave("it ended by an error of its own", is_told=False)
        if self._members.phase == "left" or not {*self._members.members} <= self._open:
            return self._leave("not all workers were within their steps")
        if rank == min(self._members.members):
            return self._leave("it was the leader")
        if place[1] >= 0 and place in self._places:
            return self._leave(f"a worker died in step {place[0]}, replica {place[1]} before")
        self._places.add(place)
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        count = f"{len(others)} workers go" if len(others) > 1 else "1 worker goes"
        self._tell(f"rank {rank} was killed by {name} in step {place[0]}; {count} on in the same step.")
        self._pending.add(rank)
        self._deadline = time.monotonic() + _GATHER_S
        return self._do(self._members.died(rank))

    def look(self) -> str:
        """Return why it cannot be gone on with: the world has not been formed in time; empty where it can."""
        if self.is_forming and time.monotonic() > self._deadline:
            return self._leave("they have not met in time")
        return ""

    def _leave(self, reason: str, *, is_told: bool = True) -> str:
        return self._do(self._members.give_up(reason), is_told=is_told) or reason

    def _do(self, outcome: tuple[Membership, tuple[Order, ...]], *, is_told: bool = True) -> str:
        self._members, orders = outcome
        reason = ""
        for order in orders:
            if isinstance(order, Form):
                self._deadline = time.monotonic() + _FORM_S
            if isinstance(order, Leave):
                reason = order.reason
                if is_told:
                    self._tell(f"The other workers cannot go on without it: {reason}.")
            for rank in self._members.members:
                self._send(rank, _message_of(order))
        return reason


def off(why: str) -> str:
    """Return what to say where nobody can go on without a worker that has died."""
    return f"live recovery is off: {why}. A death ends all workers, and restarts follow as far as they are allowed."


def _message_of(order: Order) -> dict[str, Any]:
    if isinstance(order, Leave):
        return {"leave": order.reason}
    if isinstance(order, Halt):
        return {"halt": order.epoch, "members": order.members}
    return {"form": order.epoch, "members": order.members, "passed": order.passed, "offer": order.offer}
