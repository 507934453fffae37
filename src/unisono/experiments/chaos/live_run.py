"""One run whose workers are killed while it goes on: who is there, who dies, how long the others need.

In: a launcher that runs, and the directory of its temporary files, where each worker has a heartbeat page. Out: one
`Died` for each worker that was killed in the midst of the run. Signals go through process descriptors.
"""

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from unisono.experiments.chaos.deaths import Death, Died, Kind
from unisono.experiments.injector import heartbeat_files
from unisono.system.heartbeat import JOINED, STEPPING, HeartbeatPage

_LOOK_S, _WAIT_S, _SURE_S = 0.0002, 0.002, 0.05
_AIM_S, _GUEST_S = 2.0, 20.0  # so long a phase is waited for, then it is any; and one that wants to join


class Launcher(Protocol):
    """A launcher's process."""

    def poll(self) -> int | None:
        """Return its exit code, None while it lives."""


class LiveRun:
    """One run whose workers die; none is killed after step `latest`, and `saw` gets its number and what it does before
    it is.

    Attributes:
        went_back: Steps that a worker has gone back.
    """

    def __init__(
        self, launcher: Launcher, temporary: Path, workers: int, latest: int,
        saw: Callable[[int, HeartbeatPage], None] = lambda number, page: None,
    ) -> None:  # fmt: skip
        self._launcher, self._temporary, self._workers, self._latest = launcher, temporary, workers, latest
        self.went_back, self._saw = 0, saw
        self._pages: dict[int, HeartbeatPage] = {}
        self._dead: set[int] = set()
        self._done: dict[int, int] = {}
        self._has_begun = False
        self._replica, self._began = -1, dict[int, float]()

    def members(self) -> dict[int, HeartbeatPage]:
        """Return the pages of those that are in their steps, by number; none before all were once."""
        self._find_pages()
        found = {
            number: page for number, page in sorted(self._pages.items())
            if (seen := page.read()).state == STEPPING and seen.step
        }  # fmt: skip
        self._has_begun = self._has_begun or len(found) >= self._workers
        return found if self._has_begun else {}

    def guests(self) -> dict[int, HeartbeatPage]:
        """Return the pages of those that are about to join, or wait for it, by number."""
        self._find_pages()
        return {number: page for number, page in self._pages.items() if number >= self._workers and _is_guest(page)}

    def strike(self, death: Death, *, is_whole: bool = False) -> list[Died] | None:
        """Kill as planned; return who has died, None where the run has ended before.

        Args:
            death: Who, and when.
            is_whole: Whether to wait until the world has all its workers again.
        """
        while not self._is_due(death, self._workers if is_whole else 2):  # one is left over
            if not self._goes_on(_WAIT_S):
                return None
        if death.kind == "guest":
            return self._strike_guest(death)
        members = self.members()
        may_die = self._may_die(members)
        number = death.rank if death.rank in may_die else may_die[death.rank % len(may_die)]
        if not self._aim(members[number], death):
            return None
        first = self._kill(number)
        if first is None:
            return None
        found = [first]
        if death.kind == "second":
            time.sleep(death.delay_s)
            found += self._strike_second()
        return [self._recovered(died) for died in found]

    def _may_die(self, members: Mapping[int, HeartbeatPage]) -> list[int]:
        """Return those members without whom the others can go on."""
        return [*members]

    def _is_due(self, death: Death, count: int) -> bool:
        members = self.members()
        is_whole = len(members) >= count and bool(self._may_die(members))
        return is_whole and max(page.read().step for page in members.values()) >= death.step

    def _strike_second(self) -> list[Died]:
        """Kill one more, wherever it is, but not in the replica at which the first one has died: that is a poison."""
        members = self.members()
        for number in self._may_die(members) if len(members) > 1 else ():
            replica = members[number].read().replica
            if self._replica not in (replica, replica + 1):
                second = self._kill(number, "second")
                return [] if second is None else [second]
        return []

    def _strike_guest(self, death: Death) -> list[Died] | None:
        """Kill a member, and then whoever comes in its place: a moment after it has made its run."""
        members = self.members()
        until, found = time.monotonic() + _GUEST_S, []
        if not self.guests():
            may_die = self._may_die(members)
            first = self._kill(may_die[death.rank % len(may_die)])
            if first is None:
                return None
            found = [self._recovered(first)]
        while not (guests := self.guests()):
            if not self._goes_on(_WAIT_S):
                return found or None
            if time.monotonic() > until:
                return found
        number, until = min(guests), time.monotonic() + death.delay_s
        while time.monotonic() < until and self._goes_on(_WAIT_S):
            pass
        if number not in self.guests() and len(self.members()) < 2:
            return found
        died = self._kill(number, "guest")
        return found if died is None else [*found, died if died.kind == "guest" else self._recovered(died)]

    def _aim(self, page: HeartbeatPage, death: Death) -> bool:
        """Wait until a worker does what it shall be killed in; return False where the run has ended."""
        if not death.aim:
            time.sleep(death.delay_s)
        until = time.monotonic() + _AIM_S
        while death.aim and (seen := page.read()).phase != death.aim:
            if time.monotonic() > until or seen.step > self._latest:
                break
            if not self._goes_on(_LOOK_S):
                return False
        return True

    def _kill(self, number: int, kind: Kind = "member") -> Died | None:
        """Kill one; None where it was gone, or the work was done."""
        page = self._pages[number]
        self._saw(number, page)
        self._steps = [other.read().step for other in self.members().values()]
        try:
            descriptor = os.pidfd_open(page.read().pid)
        except ProcessLookupError:
            return None
        try:
            if max(self._steps, default=self._latest + 1) > self._latest:
                return None
            self._began[number] = time.monotonic()
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [])
        except ProcessLookupError:
            return None
        finally:
            os.close(descriptor)
        return self._gone(number, kind)

    def _gone(self, number: int, kind: Kind) -> Died | None:
        """Take into account that one is no member any more, or will never be; None where the work was done."""
        last = self._pages.pop(number).read()
        self._replica = last.replica
        self._dead.add(number)
        left = len(self.members())
        if not last.step:
            step = max(self._steps)
            return Died(rank=number, step=step, phase="joining", left=left, gap_s=None, kind="guest") if left else None
        if last.state != STEPPING:
            return None
        step = last.step if last.step > last.done else last.step + 1
        kind = "member" if kind == "guest" else kind
        return Died(rank=number, step=step, phase=last.phase, left=left, gap_s=None, kind=kind)

    def _recovered(self, died: Died, until_s: float = math.inf) -> Died:
        """Wait until all others have finished the step, at most to that time, and say how long that took."""
        pages = self.members()
        while any(page.read().done < died.step and number in self._pages for number, page in pages.items()):
            if not self._goes_on(_LOOK_S) or time.monotonic() > until_s:
                return died
        return replace(died, gap_s=round(time.monotonic() - self._began[died.rank], 4))

    def _files(self) -> list[Path]:
        return heartbeat_files(self._temporary)

    def _find_pages(self) -> None:
        for path in self._files():
            number = int(path.name.rpartition("-")[2])
            if number not in self._pages and number not in self._dead:
                with contextlib.suppress(FileNotFoundError, ValueError):
                    self._pages[number] = HeartbeatPage(path)

    def _goes_on(self, wait_s: float) -> bool:
        """Wait a moment, and say whether the launcher lives."""
        time.sleep(wait_s)
        for number, page in self._pages.items():
            before = self._done.get(number, 0)
            if (done := page.read().done) < before:  # a page has no lock: what is being written may show as 0
                time.sleep(_SURE_S)
                done = page.read().done
            self.went_back += max(0, before - done)
            self._done[number] = done
        return self._launcher.poll() is None


def play(run: LiveRun, deaths: Sequence[Death]) -> list[Died]:
    """Let workers die as planned, none of whom is replaced; return who has died."""
    found: list[Died] = []
    for death in deaths:
        died = run.strike(death)
        if died is None:
            break
        found += died
    return found


def _is_guest(page: HeartbeatPage) -> bool:
    """Whether a worker that has come later has its run, and is in no step yet."""
    seen = page.read()
    return bool(seen.pid) and not seen.step and seen.state in (JOINED, STEPPING)
