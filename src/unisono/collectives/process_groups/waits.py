"""How an exchange waits for its messages, and how threads that wait are let go.

A wait of gloo's can be ended by nothing but the group: a short wait that is over breaks off all its connections, and
every other wait ends with an error.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

from unisono.collectives.process_groups.default_group import lost_peers_named
from unisono.collectives.transport import Transport

_LEAVE_S = 5.0
_TAG = (1 << 29) - 1
"""No message has it; see `exchange`."""


class Waits:
    """The waits of an exchange, as long as no rank is lost.

    Args:
        transport: Joins the ranks.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._inside, self._changed = 0, threading.Condition()  # threads that may wait for messages
        self._num_left = 0  # of those that nobody waits for any more

    def agree(self, what: str, number: int) -> list[int]:
        """See `Transport.agree`; the first message of an exchange."""
        with self.entered():
            return self._transport.agree(what, number)

    @contextlib.contextmanager
    def named(self, operation: str) -> Iterator[None]:
        """Say what an error of gloo's inside means."""
        with lost_peers_named(self._transport.rank, self._transport.world_size, operation):
            yield

    @contextlib.contextmanager
    def within(self, operation: str) -> Iterator[None]:
        """Surround waits, which `close` may end; see `named`."""
        with self.entered(), self.named(operation):
            yield

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Surround waits that name their own errors."""
        with self._changed:
            self._look()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def run(self, wait: Callable[[], None]) -> None:
        """Wait for the messages of a step's gradients."""
        wait()

    def wait(self, work: Any) -> None:
        """Return when a message is there, or has left."""
        work.wait()

    def sent(self, works: Sequence[Any]) -> None:
        """Return when messages have left, or when that need not be waited for."""
        for work in works:
            self.wait(work)

    def expect_seal(self, tag: int) -> None:
        """Be ready for what the others will say in `seal`: gloo asks back where a message comes unexpected."""

    def seal(self, tag: int) -> Callable[[], None]:
        """Tell the others that this rank has all of an exchange, and return what waits until each has said so."""
        return _nothing

    def close(self, group: Any) -> None:
        """Let no thread wait in a group: none may be left, and none of gloo's, when the interpreter ends."""
        with self._changed:
            if self._inside and group is not None:
                self._break_off(group)
                self._changed.wait_for(lambda: self._inside <= self._num_left, _LEAVE_S)

    def _look(self) -> None:
        """Raise where nothing is waited for any more."""

    def _break_off(self, group: Any) -> None:
        for rank in range(self._transport.world_size):
            if rank != self._transport.rank:  # of one that is lost already, no wait is too short
                with contextlib.suppress(RuntimeError):
                    place = torch.empty(1, dtype=torch.uint8)
                    group.recv([place], rank, _TAG).wait(timedelta(milliseconds=1))


def _nothing() -> None:
    pass
