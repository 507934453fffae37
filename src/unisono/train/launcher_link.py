"""A run's side of supervision: it tells its launcher what it does, and hears that it should stop.

In: the steps of a run. Out: notes on the worker's `HeartbeatPage`, a `HeartbeatThread`, the times of a `PhaseClock`,
and whether someone wants the run to stop: the launcher, or whoever sent SIGTERM, SIGINT or SIGUSR1 to this process.
Costs no system call per step.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from types import FrameType
from typing import Any, TypeVar, final

from unisono.collectives.placement import parts_of
from unisono.collectives.places import current_world
from unisono.data.sampler import Indices
from unisono.observe.phases import DATA, FORWARD, OTHER, REDUCE, UPDATE, PhaseClock
from unisono.strategies.base import Micro
from unisono.system.heartbeat import JOINED, LEFT_LOOP, STEPPING, STOPPED, HeartbeatPage, HeartbeatThread
from unisono.system.machine import usable_cores
from unisono.system.messages import interrupted, show_own_lines
from unisono.world import World

T = TypeVar("T")


@final
class LauncherLink:
    """What one rank tells and hears."""

    def __init__(self, world: World, *, is_process: bool) -> None:
        self._is_process = is_process
        self._signalled, self._saved = False, 0
        self._heartbeat = HeartbeatPage(world.heartbeat if is_process else None)
        self._pulse = HeartbeatThread(self._heartbeat) if is_process and world.heartbeat else None
        self._heartbeat.join(os.getpid())
        self.phases = PhaseClock()  #: Where this rank's time goes.
        # Slurm and MPI may give each process cores of its own: what this one may use says nothing of the others.
        is_bound = world.launcher not in {"none", "unisono", "torchrun"}
        cores = (os.cpu_count() or 1) if is_bound else usable_cores()
        self.phases.place = {"local_workers": world.local_world_size, "cores": cores}

    def is_stop_asked(self) -> bool:
        """Whether this rank has been asked to stop the run; the ranks have yet to agree."""
        return self._signalled or self._heartbeat.is_stop_asked

    def note(self, phase: bytes) -> None:
        """Say what this rank is doing now."""
        self._heartbeat.note(phase)

    def opened(self, step: int) -> None:
        """Say that `step` is done and saved, or 0 where nothing is."""
        self.saved(step)
        self._heartbeat.done(step)

    def ends(self, last: int) -> None:
        """Say which step is to be the last."""
        self._heartbeat.ends(last)
        self.phases.ends(last)

    def begin(self, step: int) -> None:
        """Say that a step is about to begin."""
        self.phases.begin(step)
        if self._heartbeat.is_read:
            self._heartbeat.begin(step)
            self._heartbeat.note(b"between steps")

    def follow(self, micros: Iterator[Micro], indices: Indices, replicas: int) -> Iterator[Micro]:
        """Pass on a step's micro-batches, telling which replica is computed on which samples."""
        enter, heartbeat, is_read = self.phases.enter, self._heartbeat, self._heartbeat.is_read
        enter(DATA)
        if is_read:
            heartbeat.note(b"data")
        for micro in micros:
            if is_read:
                part = parts_of(len(indices), replicas)[micro.replica]
                heartbeat.take_up(micro.replica, indices[part.start : part.stop].astype("<i8").tobytes())
                heartbeat.note(b"compute")
            enter(FORWARD)
            self.phases.replicas += 1
            yield micro
            enter(DATA)
            if is_read:
                heartbeat.note(b"data")
        enter(REDUCE)
        if is_read:
            heartbeat.take_up(-1, b"")
            heartbeat.note(b"reduce")

    def updating(self) -> None:
        """Say that the gradients are known and the update begins."""
        self.phases.enter(UPDATE)
        if self._heartbeat.is_read:
            self._heartbeat.note(b"update")

    def done(self, step: int, loss: float | None = None) -> None:
        """Say that a step's update is finished; `loss` is what a notebook shows."""
        self.phases.enter(OTHER)
        if self._heartbeat.is_read:
            self._heartbeat.done(step, loss)
            self._heartbeat.note(b"record")

    def saved(self, step: int) -> None:
        """Say that a checkpoint has been committed."""
        self._saved = step
        self._heartbeat.saved(step)

    def stopped(self, step: int) -> None:
        """Say that the run ends because it was asked to, with everything saved."""
        self._heartbeat.set_state(STOPPED)
        if current_world().is_leader:
            sys.stderr.write(f"unisono: stopped after step {step}, and saved. The same command goes on.\n")

    def over(self, steps: Generator[T], *, can_save: bool) -> Generator[T]:
        """Pass on `steps`; meanwhile the first SIGTERM, SIGINT or SIGUSR1 asks to stop, and a second acts as always.

        Without a place to save, and where the program has handlers of its own, signals act as always.

        Raises:
            Exception: That of `steps`, without frames of this package where the program's lines say enough.
        """
        previous = self._take_signals() if self._is_process and can_save else {}
        if can_save:
            self._heartbeat.set_state(STEPPING)
        try:
            yield from steps
        except Exception as error:
            show_own_lines(error)
            raise
        finally:
            if self._heartbeat.read().state == STEPPING:
                self._heartbeat.set_state(JOINED)
            self._heartbeat.note(LEFT_LOOP.encode())
            for signum, handler in previous.items():
                if signal.getsignal(signum) in (self._hear, self._hear_again):
                    signal.signal(signum, handler)

    def around(self, predict: Callable[[Any], T], look: Callable[[], None]) -> Callable[[Any], T]:
        """Return `predict`, telling that it is called, and calling `look` before."""

        def told(micro: Any) -> T:
            self._heartbeat.note(b"evaluate")
            look()
            return predict(micro)

        return told

    def close(self) -> None:
        """End the link; safe to call twice."""
        if self._pulse is not None:
            self._pulse.stop()
        self._heartbeat.leave()

    def _take_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        usual: dict[int, tuple[Any, ...]] = {
            signal.SIGTERM: (signal.SIG_DFL,),
            signal.SIGINT: (signal.default_int_handler,),
            signal.SIGUSR1: (signal.SIG_DFL, signal.SIG_IGN),  # schedulers warn by it
        }
        taken = {signum: was for signum in usual if (was := signal.getsignal(signum)) in usual[signum]}
        for signum in taken:
            signal.signal(signum, self._hear)
        self._process, self._taken = os.getpid(), taken
        return taken

    def _hear(self, signum: int, frame: FrameType | None) -> None:
        for number, handler in self._taken.items():
            signal.signal(number, self._hear_again if number == signal.SIGINT else handler)
        if os.getpid() != self._process:  # a data loading process, forked from here
            signal.signal(signum, self._taken[signum])
            signal.raise_signal(signum)
            return
        self._signalled = True
        ends_us = signum == signal.SIGTERM and self._heartbeat.is_read  # mostly our launcher, which has said why
        if current_world().is_leader and not ends_us:
            os.write(2, b"unisono: stopping after the step in progress; once more stops at once.\n")

    def _hear_again(self, signum: int, frame: FrameType | None) -> None:
        """Stop at once, with what is kept."""
        signal.signal(signum, self._taken[signum])
        if os.getpid() != self._process or self._heartbeat.is_read:  # the launcher says it
            signal.raise_signal(signum)
            return
        kept, goes = ("nothing", "begins again") if self._saved == 0 else (f"step {self._saved}", "goes on")
        os.write(2, f"unisono: stopped at once; {kept} is saved. The same command {goes}.\n".encode())
        raise interrupted()
