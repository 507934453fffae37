"""What a worker tells its launcher while it runs: one small shared page for each worker.

In: a file of one page in the launch's private directory, named in ``UNISONO_HEARTBEAT``. The worker writes signs of
life, its step and what it is doing; the launcher writes one word: stop. Plain stores into mapped memory, so that
telling costs no system call, and the last words of a killed worker can still be read. Must not import torch.
"""

import math
import mmap
import os
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import final

HEARTBEAT_VARIABLE = "UNISONO_HEARTBEAT"
BEAT_S = 0.25

QUIET, JOINED, STEPPING, STOPPED = range(4)
"""States: no run in this worker; a run has joined; it can be stopped between steps; it has been."""

LEFT_LOOP = "after the loop"
"""The phase of a worker that has left its loop over steps, and has told nothing since."""

_BYTES = 4096
# Worker: beats, pid, step in progress, steps done, step saved, ticks; state, replica, number of samples; phase.
_HEAD = struct.Struct("<QqqqqQIiI16s")
_BEATS, _PID, _STEP, _DONE, _SAVED, _TICKS = range(0, 48, 8)
_STATE, _REPLICA, _NUM_SAMPLES, _PHASE = range(48, 64, 4)
_STOP = 80  # launcher
_ALONE = 84  # worker, as all that follows
_LAST, _LOSS = 88, 92
_SAMPLES = 96
_MOST_SAMPLES = (_BYTES - _SAMPLES) // 8
_LONG, _ULONG, _INT, _UINT = struct.Struct("<q"), struct.Struct("<Q"), struct.Struct("<i"), struct.Struct("<I")
_SHOWN, _FLOAT = struct.Struct("<If"), struct.Struct("<f")
_MOST_LOSS = 3e38  # of four bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What one worker has told so far."""

    beats: int = 0  #: Signs of life of a thread that needs the interpreter's lock.
    pid: int = 0  #: Process id; 0 while no run has joined.
    step: int = 0  #: The step (1-based) in progress or about to begin; 0 before the first.
    done: int = 0  #: The last step whose update is finished, 0 for none; counted from the run's start.
    saved: int = 0  #: The step of the newest checkpoint, 0 for none.
    ticks: int = 0  #: Grows with every phase.
    state: int = QUIET  #: QUIET, JOINED, STEPPING or STOPPED.
    replica: int = -1  #: The replica being computed, -1 for none.
    phase: str = ""  #: What it is doing: ``data``, ``compute``, ``reduce``, ...
    samples: tuple[int, ...] = ()  #: Indices of the replica's micro-batch, cut after 500.
    is_alone: bool = False  #: Whether it has ended, and has trained without any other.
    last: int = 0  #: The step that is to be the last, 0 while it is not known.
    loss: float = 0.0  #: Of the last step that is done, rounded: to be shown, not to be compared.

    @property
    def is_joined(self) -> bool:
        """Whether a run lives in this worker, so that silence means something."""
        return self.state in (JOINED, STEPPING)


@final
class HeartbeatPage:
    """One worker's page, from either side; without a path, memory of our own that nobody reads."""

    def __init__(self, path: str | Path | None) -> None:
        self.is_read = path is not None  #: Whether somebody may read it.
        if path is None:
            self._page = mmap.mmap(-1, _BYTES)
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._page = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)

    @classmethod
    def create(cls, path: Path) -> "HeartbeatPage":
        """Make the file; written out in full, so that no later store can find the disk full."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(_BYTES))
        heartbeat = cls(path)
        _INT.pack_into(heartbeat._page, _REPLICA, -1)
        return heartbeat

    def keep(self) -> None:
        """Keep what a worker has told that has ended, without its file, which holds a descriptor."""
        page, self._page = self._page, mmap.mmap(-1, _BYTES)
        self._page[:] = page[:]
        page.close()

    def read(self) -> Reading:
        """Return what the worker has told so far."""
        beats, pid, step, done, saved, ticks, state, replica, count, phase = _HEAD.unpack_from(self._page, 0)
        last, loss = _SHOWN.unpack_from(self._page, _LAST)
        return Reading(
            beats=beats, pid=pid, step=step, done=done, saved=saved, ticks=ticks, state=state, replica=replica,
            phase=phase.rstrip(b"\0").decode(errors="replace"),
            samples=struct.unpack_from(f"<{min(count, _MOST_SAMPLES)}q", self._page, _SAMPLES),
            is_alone=self._page[_ALONE] != 0, last=last, loss=loss,
        )  # fmt: skip

    def ask_stop(self) -> None:
        """Ask the worker to stop after the step in progress."""
        _UINT.pack_into(self._page, _STOP, 1)

    @property
    def is_stop_asked(self) -> bool:
        """Whether the launcher wants the run to stop."""
        return self._page[_STOP] != 0

    def join(self, pid: int) -> None:
        """Say that a run lives in this worker, and begin to show signs of life."""
        _LONG.pack_into(self._page, _PID, pid)
        self.set_state(JOINED)

    def set_state(self, state: int) -> None:
        """Say what the launcher may expect."""
        _UINT.pack_into(self._page, _STATE, state)

    def was_alone(self) -> None:
        """Say that this worker ends, and has trained without any other."""
        _UINT.pack_into(self._page, _ALONE, 1)

    def leave(self) -> None:
        """Say that no run lives in this worker any more."""
        if self.read().state != STOPPED:
            self.set_state(QUIET)

    def beat(self) -> None:
        """Show a sign of life."""
        _ULONG.pack_into(self._page, _BEATS, _ULONG.unpack_from(self._page, _BEATS)[0] + 1)

    def note(self, phase: bytes) -> None:
        """Say what the worker is doing now, in at most 16 bytes."""
        if not self.is_read:
            return
        self._page[_PHASE : _PHASE + 16] = phase.ljust(16, b"\0")
        _ULONG.pack_into(self._page, _TICKS, _ULONG.unpack_from(self._page, _TICKS)[0] + 1)

    def begin(self, step: int) -> None:
        """Say which step is in progress or about to begin."""
        if not self.is_read:
            return
        _LONG.pack_into(self._page, _STEP, step)

    def ends(self, last: int) -> None:
        """Say which step is to be the last."""
        _UINT.pack_into(self._page, _LAST, min(max(last, 0), 2**32 - 1))

    def done(self, step: int, loss: float | None = None) -> None:
        """Say which step is finished, and with which loss; None where another launch has computed it."""
        if not self.is_read:
            return
        shown = math.nan if loss is None else math.copysign(math.inf, loss) if abs(loss) > _MOST_LOSS else loss
        _FLOAT.pack_into(self._page, _LOSS, shown)
        _LONG.pack_into(self._page, _DONE, step)
        _INT.pack_into(self._page, _REPLICA, -1)

    def saved(self, step: int) -> None:
        """Say which step has been committed."""
        if not self.is_read:
            return
        _LONG.pack_into(self._page, _SAVED, step)

    def take_up(self, replica: int, samples: bytes) -> None:
        """Say which replica is computed, on which samples (little-endian int64)."""
        samples = samples[: 8 * _MOST_SAMPLES]
        _UINT.pack_into(self._page, _NUM_SAMPLES, 0)
        self._page[_SAMPLES : _SAMPLES + len(samples)] = samples
        _INT.pack_into(self._page, _REPLICA, replica)
        _UINT.pack_into(self._page, _NUM_SAMPLES, len(samples) // 8)


@final
class HeartbeatThread:
    """A thread that beats until `stop`: it needs the interpreter's lock, so that a deadlock on it shows as silence."""

    def __init__(self, heartbeat: HeartbeatPage) -> None:
        self._stopped = threading.Event()
        self._heartbeat = heartbeat
        threading.Thread(target=self._run, name="unisono-pulse", daemon=True).start()

    def stop(self) -> None:
        """End the thread; safe to call twice."""
        self._stopped.set()

    def _run(self) -> None:
        self._heartbeat.beat()
        while not self._stopped.wait(BEAT_S):
            self._heartbeat.beat()
