"""Launchers on one machine that stand for hosts, and a run on them that loses workers and whole hosts.

In: command lines, one a host. Out: what `LiveRun` gives, and what was wrong with how the launchers have ended. They
meet over loopback, as launchers of different machines meet over their network; what a cut network does is played by
stopping all processes of a host, which needs no rights. The host whose launcher decides may be lost while there are two
others; no more than that: as long as it is there it keeps a worker that has begun its steps.
"""

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, final

from unisono.experiments.chaos.deaths import Death, Died, Kind
from unisono.experiments.chaos.live_run import LiveRun
from unisono.experiments.injector import heartbeat_files
from unisono.launchers.supervision.replacements import node_of
from unisono.system.heartbeat import HeartbeatPage

_DECIDING: tuple[Kind, ...] = ("decider", "silent decider")
_WHOLE: tuple[Kind, ...] = ("host", "launcher", "silent", *_DECIDING)
_SILENT: tuple[Kind, ...] = ("silent", "silent decider")

_LAST_LINES = 20
_END_S = 60.0  # so long a launcher may need for its end when the others have ended
_WAIT_S = 0.002
_LONGEST = 4.0  # times the silence a host is stopped: others may need what it holds before they finish the step


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@final
class Launchers:
    """The launchers of one run, by number of the host, each with a directory for its temporary files and its words.

    Args:
        commands: Their command lines.
        env: Variables of all.
        folder: Where their directories are made.
    """

    def __init__(self, commands: Sequence[Sequence[str]], env: Mapping[str, str], folder: Path) -> None:
        self.temporary = [folder / f"host-{number}" if number else folder for number in range(len(commands))]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lost: set[int] = set()
        for command, place in zip(commands, self.temporary, strict=True):
            place.mkdir(mode=0o700)
            with self._log(place).open("wb") as file:
                process = subprocess.Popen(
                    command, env={**env, "TMPDIR": str(place)}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
                )
            self._processes.append(process)

    @property
    def left(self) -> list[int]:
        """The hosts that have not been lost."""
        return [host for host in range(len(self._processes)) if host not in self._lost]

    def poll(self) -> int | None:
        """Return the exit code of the first one that is left, None while it lives."""
        return self._processes[self.left[0]].poll()

    def signal(self, host: int, signum: int) -> None:
        """Kill, stop or wake a launcher, which is lost from then on: nothing good is expected of its end."""
        self._lost.add(host)
        self._processes[host].send_signal(signum)

    def end(self, longest_s: float) -> list[str]:
        """Wait until all have ended, at most so long for the first one that is left; return what is wrong with how they
        have, with their last words.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[self.left[0]].wait(longest_s)
        deadline, found = time.monotonic() + _END_S, []
        for host, process in enumerate(self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            code = process.poll()
            if code is None or (code == 0) == (host in self._lost):
                lines = self._log(self.temporary[host]).read_text(errors="replace").splitlines(keepends=True)
                name = f"the launcher of host {host}" if len(self._processes) > 1 else "it"
                late = ", though its host was left out" if host in self._lost else ""
                how = "did not end" if code is None else f"ended with exit code {code}"
                found.append(f"{name} {how}{late}:\n{''.join(lines[-_LAST_LINES:])}")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    @staticmethod
    def _log(place: Path) -> Path:
        return place / "launcher.log"


@final
class HostsRun(LiveRun):
    """A run on several hosts that loses workers and hosts.

    Args:
        launchers: Theirs.
        workers: On each host.
        latest: As `LiveRun` takes it.
        silence_s: Their --silence, in seconds.
    """

    def __init__(self, launchers: Launchers, workers: int, latest: int, silence_s: float = 1.0) -> None:
        hosts = len(launchers.temporary)
        super().__init__(launchers, launchers.temporary[0], hosts * workers, latest)
        self._launchers, self._longest_s = launchers, _LONGEST * silence_s
        self._decider = 0
        self._spans = [range(host * workers, (host + 1) * workers) for host in range(hosts)]

    def strike(self, death: Death, *, is_whole: bool = False) -> list[Died] | None:
        """As `LiveRun.strike`; where no host is left to be lost, a worker dies."""
        if death.kind not in _WHOLE:
            return super().strike(death, is_whole=is_whole)
        while not self._is_due(death, 2):
            if not self._goes_on(_WAIT_S):
                return None
        members = self.members()
        hosts = self._at_work(members)
        others = [host for host in hosts if host != self._decider]
        if death.kind in _DECIDING and others and len(self._launchers.left) > 2:  # whose loss the others agree on
            others = [self._decider]
        elif death.kind in _DECIDING or not others:
            return super().strike(replace(death, kind="member"))
        host = others[death.rank % len(others)]
        numbers = [number for number in members if self._host_of(number) == host]
        return self._lose(host, numbers, death.kind) if self._aim(members[numbers[0]], death) else None

    def _at_work(self, members: Mapping[int, HeartbeatPage]) -> list[int]:
        """Return the hosts that have workers."""
        return sorted({self._host_of(number) for number in members})

    def _files(self) -> list[Path]:
        return [path for place in self._launchers.temporary for path in heartbeat_files(place)]

    def _may_die(self, members: Mapping[int, HeartbeatPage]) -> list[int]:
        home = [number for number in members if self._host_of(number) == self._decider]
        return [number for number in members if number not in home or len(home) > 1]

    def _host_of(self, number: int) -> int:
        return node_of(number, self._spans)

    def _lose(self, host: int, numbers: Sequence[int], kind: Kind) -> list[Died] | None:
        """Lose a launcher and its workers at one blow; return when the others have gone on; None where all is done."""
        first, signum = numbers[0], signal.SIGSTOP if kind in _SILENT else signal.SIGKILL
        self._steps = [page.read().step for page in self.members().values()]
        if max(self._steps, default=self._latest + 1) > self._latest:
            return None
        with contextlib.ExitStack() as stack:
            workers = []
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    workers.append(os.pidfd_open(self._pages[number].read().pid))
                    stack.callback(os.close, workers[-1])
            self._began[first] = time.monotonic()
            self._launchers.signal(host, signum)
            _send([] if kind in ("launcher", "decider") else workers, signum)
            if kind in _SILENT:
                stack.callback(self._launchers.signal, host, signal.SIGCONT)
                stack.callback(_send, workers, signal.SIGCONT)
            for worker in () if kind in _SILENT else workers:
                select.select([worker], [], [])
            for number in numbers[1:]:
                self._gone(number, kind)
            died = self._gone(first, kind)
            if died is not None and kind in _SILENT:  # it may have given its step all: they miss it in the next one
                died = replace(died, step=died.step + 1)
            if host == self._decider:
                self._decider = next(iter(self._at_work(self.members())), host)
            until_s = time.monotonic() + (self._longest_s if kind in _SILENT else math.inf)
            found = None if died is None else self._recovered(died, until_s)
        if found is None:
            return None
        return [found if found.gap_s is not None else self._recovered(found)]


def _send(workers: Sequence[int], signum: int) -> None:
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker, signum)
