"""Disturb a run as planned: start its launcher, wait for a step, inject a fault, see whether it landed.

In: a command line and `Fault`s. Out: one `Injection` per fault, with what was seen. Every launcher gets a
temporary directory of its own, in which its workers' heartbeat pages are found. Signals go through process descriptors,
so that no stranger who inherits a process id is ever hit.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from unisono.errors import LaunchError, RunStopped
from unisono.experiments.fault_schedule import Fault
from unisono.system.heartbeat import QUIET, STOPPED, HeartbeatPage, Reading
from unisono.system.processes import look_at

_LOOK_S = 0.001
_DEATH_S = 15.0
_STOP_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """What came of one fault."""

    fault: Fault  #: As planned.
    step: int  #: The step in progress when it came; 0 where the run had ended before.
    phase: str  #: What the worker that was hit was doing.
    has_landed: bool  #: Whether the processes have really died or stopped, in the middle of the run.
    #: Until the first step after it was finished; None where the run ended first, or nothing had died.
    recovery_s: float | None = None


@dataclass(slots=True)
class _Worker:
    """A worker as seen through its page, and its process descriptor."""

    heartbeat: HeartbeatPage
    reading: Reading
    descriptor: int


@final
class Injector:
    """One disturbed run.

    Every wait for it raises `LaunchError` where it stands still.

    Args:
        command: Returns the command line of a launcher of so many workers.
        env: Its variables.
        scratch: Directory for what launchers say and write.
        workers: Of the first launcher.
        longest_s: So long a step, or the end of the run, is waited for.
    """

    def __init__(
        self, command: Callable[[int], list[str]], env: Mapping[str, str], scratch: Path, workers: int, longest_s: float
    ) -> None:
        self.workers, self._longest_s = workers, longest_s
        self._command, self._env, self._scratch = command, dict(env), scratch
        self._launcher: subprocess.Popen[bytes] | None = None
        self._num_launches = 0
        self._passed = 0  # the last step that has seen a fault

    @property
    def log(self) -> Path:
        """What all launchers have said."""
        return self._scratch / "launchers.log"

    def start(self) -> None:
        """Start a launcher."""
        self._num_launches += 1
        self._temporary.mkdir(mode=0o700)
        with self.log.open("ab") as log:
            self._launcher = subprocess.Popen(
                self._command(self.workers), env={**self._env, "TMPDIR": str(self._temporary)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def inject(self, fault: Fault) -> Injection:
        """Wait for the fault's step, inject it, and wait until the run has done a step more."""
        worker_group: list[_Worker] = []
        following = max(fault.step, self._passed + 1)

        def is_due(reading: Reading) -> bool:
            if reading.is_joined and reading.step >= following:
                worker_group.extend(self._worker_group())
            return bool(worker_group)

        if not self._wait_until(is_due):
            return Injection(fault=fault, step=0, phase="", has_landed=False)
        try:
            hit = worker_group[fault.rank % len(worker_group)]
            began = time.monotonic()
            has_landed = self._apply(fault, worker_group, hit)
            last = [worker.heartbeat.read() for worker in worker_group]
            phase = hit.heartbeat.read().phase
            self._passed = max(reading.step for reading in last)
            pids = {worker.reading.pid for worker in worker_group}
        finally:
            for worker in worker_group:
                os.close(worker.descriptor)
        recovery_s = None
        if has_landed and fault.kind != "stop" and self._wait_for_new_step(pids):
            recovery_s = round(time.monotonic() - began, 3)
        return Injection(fault=fault, step=self._passed, phase=phase, has_landed=has_landed, recovery_s=recovery_s)

    def finish(self) -> int:
        """Wait for the launcher and return its exit code."""
        return self._end(self._longest_s)

    def close(self) -> None:
        """Kill the launcher if it still runs; its workers die with it."""
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.kill()
            self._launcher.wait()

    @property
    def _temporary(self) -> Path:
        return self._scratch / f"tmp-{self._num_launches}"

    def _worker_group(self) -> list[_Worker]:
        """Return all workers of the present attempt, empty while they are not complete."""
        workers: list[_Worker] = []
        paths = sorted(heartbeat_files(self._temporary), key=lambda path: int(path.name.rpartition("-")[2]))
        try:
            for path in paths:
                heartbeat = HeartbeatPage(path)
                reading = heartbeat.read()
                if not reading.is_joined:
                    raise ProcessLookupError
                workers.append(_Worker(heartbeat, reading, os.pidfd_open(reading.pid)))
        except (FileNotFoundError, ProcessLookupError, ValueError):  # ended, between two attempts, or not written yet
            for worker in workers:
                os.close(worker.descriptor)
            return []
        return workers

    def _wait_for_new_step(self, old_pids: set[int]) -> bool:
        """Wait until a worker that is not an old one has finished a step; False if the run ends before."""
        first: dict[int, int] = {}

        def has_stepped(reading: Reading) -> bool:
            is_new = reading.pid and reading.pid not in old_pids and reading.step
            return bool(is_new and reading.done >= first.setdefault(reading.pid, reading.step))

        return self._wait_until(has_stepped)

    def _wait_until(self, holds: Callable[[Reading], bool]) -> bool:
        """Wait until something holds of a worker's heartbeat page; False if the run ends before."""
        deadline = time.monotonic() + self._longest_s
        while time.monotonic() < deadline:
            for path in heartbeat_files(self._temporary):
                try:
                    reading = HeartbeatPage(path).read()
                except (FileNotFoundError, ValueError):  # gone, or not written yet
                    continue
                if holds(reading):
                    return True
            if self._has_ended():
                return False
            time.sleep(_LOOK_S)
        raise LaunchError(f"no worker has done its next step within {self._longest_s:g} s:\n{_tail(self.log)}")

    def _end(self, longest_s: float) -> int:
        assert self._launcher is not None
        try:
            return self._launcher.wait(longest_s)
        except subprocess.TimeoutExpired as error:
            raise LaunchError(f"the launcher has not ended within {longest_s:g} s:\n{_tail(self.log)}") from error

    def _has_ended(self) -> bool:
        assert self._launcher is not None
        code = self._launcher.poll()
        if code not in (None, 0):
            raise LaunchError(
                f"the launcher ended by itself with exit code {code}:\n{_tail(self.log)}"
                "Hint: run the command without chaos first."
            )
        return code == 0

    def _apply(self, fault: Fault, worker_group: list[_Worker], hit: _Worker) -> bool:
        assert self._launcher is not None
        if fault.kind == "stop":
            return _hold(hit, fault.hold_s)
        if fault.kind == "kill-worker":
            return _kill([hit])
        if fault.kind == "kill-all":
            return _kill(worker_group)
        self.workers = fault.workers
        if fault.kind == "resize":
            self._launcher.send_signal(signal.SIGTERM)
            if self._end(_STOP_S) != RunStopped.exit_code:
                return False
        else:
            self._launcher.kill()
            self._launcher.wait()
            if not all(_was_at_work(worker) for worker in worker_group):
                return False
        self.start()  # at once: the old workers may still be dying
        return True


def heartbeat_files(temporary: Path) -> list[Path]:
    """Return the heartbeat pages of the launch whose temporary files are in `temporary`; none while it is removed."""
    try:
        return list(temporary.glob("unisono-*/heartbeat-*"))
    except FileNotFoundError:  # the launch has ended meanwhile
        return []


def _kill(workers: list[_Worker]) -> bool:
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker.descriptor, signal.SIGKILL)
    deadline = time.monotonic() + _DEATH_S
    for worker in workers:
        if not select.select([worker.descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
    return all(_was_at_work(worker) for worker in workers)


def _was_at_work(worker: _Worker) -> bool:
    """Whether a worker's last words are those of a run in progress."""
    return worker.heartbeat.read().state not in (QUIET, STOPPED)


def _hold(worker: _Worker, seconds: float) -> bool:
    try:
        signal.pidfd_send_signal(worker.descriptor, signal.SIGSTOP)
        deadline = time.monotonic() + _DEATH_S
        while not (has_stopped := look_at(worker.reading.pid).state == "T") and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        time.sleep(seconds)
        signal.pidfd_send_signal(worker.descriptor, signal.SIGCONT)
    except ProcessLookupError:
        return False
    return has_stopped and _was_at_work(worker)


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()[-20:]
    return "".join(f"  {line}\n" for line in lines)
