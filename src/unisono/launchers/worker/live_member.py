"""A worker's side of live recovery: it hears that the world has changed, and asks at its meetings what to do.

In: orders of the launcher, as lines of JSON over a socket that the worker inherits. Out: the same way, that it is ready
and up. A small thread hears; it ends nothing but waits that do not look (`interrupt`). What is right to do is
`member.Member`'s to say. Must not import torch.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, final

from unisono.errors import PeerLost
from unisono.launchers.membership import Form, Halt
from unisono.launchers.supervision.channels import LEADERS_ERROR_VARIABLE
from unisono.launchers.worker.member import Member

ENDLESS = sys.maxsize
"""A meeting that nobody has passed."""

_WORD_S = 5.0
"""How long the launcher's word is waited for once a peer is seen dead: the kernel tells it as soon as us."""

_READ_BYTES = 1 << 16


class WorldChanged(BaseException):
    """A rank has died, and the others go on: whoever can do his work again in the new world catches this."""


class Released(SystemExit):
    """This worker is not needed any more, since the world is to be smaller: the others go on; it ends well."""

    def __init__(self) -> None:
        super().__init__(0)


@final
class LiveMember:
    """One worker of a launch whose workers may die.

    Args:
        descriptor: Of the socket to the launcher.
        number: Of this member: its rank at the start, or the next number where it joins later.

    Attributes:
        is_called: Whether a new world is to be formed; looked at before every meeting.
        is_knocked: Whether others are ready to join.
        is_anchored: Whether this worker is where it can begin again.
        offer: Makes a place to meet for so many ranks in a world of an epoch, and returns its address.
        interrupt: Called by the thread that hears, whenever `is_called` is set: lets threads go that wait.
        released: Numbers of members that have left because they were not needed any more.
        deaths: Of each that has died the step that it was in, as the launcher tells it; none where that is unknown.
        word_s: How long the launcher's word is waited for once a peer is seen dead.
    """

    def __init__(self, descriptor: int, number: int) -> None:
        os.set_inheritable(descriptor, False)  # OSError where the program that inherits the variable has no socket
        self._leaders_error = _leaders_error()
        self._descriptor = descriptor  # as a number: it stays open until the launcher ends or this process does
        self._side = Member(number)
        self._change = threading.Condition()
        self._members: tuple[int, ...] = ()
        self._left = ""
        self._seen_dead, self._left_at = 0.0, ENDLESS
        self.is_called = self.is_anchored = self.is_knocked = False
        self.released: set[int] = set()
        self.deaths: dict[int, int] = {}
        self.word_s = _WORD_S
        self.offer: Callable[[int, int], str] = lambda size, epoch: ""
        self.interrupt: Callable[[], None] = lambda: None
        threading.Thread(target=self._hear, name="unisono-live", daemon=True).start()

    @property
    def number(self) -> int:
        """Return this member's number."""
        return self._side.number

    def lead(self) -> None:
        """Write error output where the leader that has died did, a bar on a terminal above all."""
        if self._leaders_error is not None:
            sys.stderr.flush()
            os.dup2(self._leaders_error, 2)

    def open(self, why_not: str = "", **about: Any) -> None:
        """Tell the launcher that steps begin, in which a death can be lived through; or why it cannot; and of the run.

        Args:
            why_not: Why it cannot; empty where it can.
            about: ``replicas``, and ``directory``, where there is one: what is known of the run.
        """
        self._tell(open=not why_not, why=why_not, **about)

    def close(self) -> None:
        """Tell the launcher that steps have been left early."""
        self._tell(open=False, why="")

    def finish(self, passed: int) -> None:
        """Tell the launcher that steps are over, and which meeting was the last one."""
        self._tell(finished=passed)

    def at(self, meeting: int) -> bool:
        """Ask what to do at a meeting of the present world; may wait for the launcher.

        Args:
            meeting: Its number: all before it have been passed, it has not.

        Returns:
            Whether it is to be completed without waiting, since others have passed it.

        Raises:
            WorldChanged: It will not take place.
            Released: The others go on without this worker.
            PeerLost: The launcher ends this world.
        """
        with self._change:
            while True:
                if self._side.number in self.released:
                    raise Released
                if self._left:
                    raise PeerLost(self._left)
                advice = self._side.advise(meeting)
                if advice == "freeze":
                    self._freeze(0 if meeting == ENDLESS else meeting - 1)
                elif advice == "wait":
                    self._change.wait()
                elif advice == "move":
                    self._left_at = meeting
                    raise WorldChanged
                else:
                    return advice == "complete"

    def wait_at_door(self, meeting: int) -> None:
        """Wait until the launcher has called all members, with those that join; raises as `at`, always."""
        with self._change:
            if not self.is_called:
                self._tell(door=self._side.epoch)
            self._change.wait_for(lambda: self.is_called)
        self.at(meeting)

    def enter(self) -> None:
        """Tell the launcher that this worker is ready to join, and return when a world with it is formed; see `move`.

        Raises:
            PeerLost: The launcher ends the others.
        """
        self._tell(arrived=True)
        with self._change:
            self._change.wait_for(lambda: self.is_called)
        self.is_anchored = True
        with contextlib.suppress(WorldChanged):
            self.at(ENDLESS)

    def refuse(self, why: str) -> NoReturn:
        """Tell the launcher why this worker cannot join, and wait for the end that it is given for that.

        Raises:
            PeerLost: The others have been ended before.
        """
        self._tell(refused=why)
        with self._change:
            self._change.wait_for(lambda: bool(self._left))
        raise PeerLost(self._left)

    def is_word_due(self) -> bool:
        """Whether the launcher's word on a peer that is seen dead is still to come; then it decides."""
        now = time.monotonic()
        self._seen_dead = self._seen_dead or now
        return not self._left and now < self._seen_dead + self.word_s

    def await_call(self) -> None:
        """Return when the launcher has called to another world, or a little later."""
        with self._change:
            self._change.wait_for(lambda: self.is_called or bool(self._left), self.word_s)

    def move(self) -> Form:
        """Go to the new world, and return what is known of it."""
        with self._change:
            while (world := self._side.world) is None:  # one more has died since
                with contextlib.suppress(WorldChanged):
                    self.at(self._left_at)
            self._side = self._side.moved()
            self.is_called, self._seen_dead = bool(self._left) or self._side.called != self._side.epoch, 0.0
            self.is_knocked &= not world.is_door
            return world

    def up(self, epoch: int) -> None:
        """Tell the launcher that this worker has met the others."""
        self._tell(up=epoch)

    def _freeze(self, passed: int) -> None:
        refusal = "" if self.is_anchored else "a rank waits for the others in code of the program's own"
        is_first = self._members[0] == self._side.number and not refusal
        offer = self.offer(len(self._members), self._side.called) if is_first else ""
        self._side = self._side.has_passed(passed).froze()
        self._tell(ready=self._side.called, passed=passed, refusal=refusal, offer=offer)

    def _tell(self, **message: Any) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone, and this process will be in a moment
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def _hear(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while found := os.read(self._descriptor, _READ_BYTES):
                *lines, rest = (rest + found).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        self._leave("the launcher has closed its connection to this worker, so nobody can say which ranks go on.")

    def _leave(self, why: str) -> None:
        with self._change:
            self._left = self._left or why
            self.is_called = True
            self._change.notify_all()
        self.interrupt()

    def _take(self, message: dict[str, Any]) -> None:
        with self._change:
            if "leave" in message:
                self._left = f"a rank has died, and the others cannot go on without it: {message['leave']}."
            elif "knock" in message:
                self.is_knocked = True
            else:
                order = _order_of(message)
                self.released |= {*message.get("released", ())}
                self.deaths |= {int(rank): step for rank, step in message.get("deaths", {}).items()}
                if isinstance(order, Halt) and order.epoch > self._side.called:
                    self._members = order.members
                self._side = self._side.hear(order)
            is_over = bool(self._left) or self._side.number in self.released
            self.is_called = is_over or self._side.called != self._side.epoch
            self._change.notify_all()
        if self.is_called:
            self.interrupt()


_known: dict[int, LiveMember] = {}


def _leaders_error() -> int | None:
    told = os.environ.pop(LEADERS_ERROR_VARIABLE, None)
    if told is not None:
        os.set_inheritable(int(told), False)
    return None if told is None else int(told)


def join(descriptor: int, number: int) -> tuple[LiveMember, bool]:
    """Return this process's member, and whether it is new: meetings are counted through a life, and a run begins at 0.

    Raises:
        OSError: There is no such descriptor.
    """
    if descriptor in _known:
        return _known[descriptor], False
    _known[descriptor] = LiveMember(descriptor, number)
    return _known[descriptor], True


def _order_of(message: dict[str, Any]) -> Halt | Form:
    members = tuple(message["members"])
    if "halt" in message:
        return Halt(message["halt"], members)
    return Form(message["form"], members, message["passed"], message["offer"], message["door"])
