"""The ledger: one line per step, written by the leader, by which runs are compared bit for bit.

A line is JSON with a fixed key order and no time in it, so two runs of one score have equal files. Floats are
written as hex (``float.hex``), exactly. On resume the lines after the checkpoint's step are cut off and written
anew. A damaged ledger is set aside, never cut without a word.
"""

import contextlib
import hashlib
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from unisono.directory import Directory, entered
from unisono.disk import explained


class Entry(NamedTuple):
    """What one step did.

    Attributes:
        step: 1-based.
        epoch: 0-based.
        num_samples: Samples in the step's batch.
        samples: Hash of their indices, in order.
        loss: Mean loss over them, as hex float.
        gradient: Checksum of the summed gradient's bits, before clipping.
        weights: Checksum of the weights' bits before the update.
        lr: Learning rate of the first parameter group in this update, as hex float.
    """

    step: int
    epoch: int
    num_samples: int
    samples: str
    loss: str
    gradient: str
    weights: str
    lr: str


class Detail(NamedTuple):
    """What a step was made of, on request (``detail.jsonl``): what `unisono diff` names replica and parameter by.

    Attributes:
        step: 1-based.
        indices: The batch's samples, in order.
        losses: Mean loss of each replica's micro-batch, as hex floats; empty where the strategy has no replicas.
        weights: Checksum of each parameter and buffer before the update, by name, in the model's order.
        gradients: Checksum of each gradient before clipping; a parameter without one is left out.
    """

    step: int
    indices: list[int]
    losses: list[str]
    weights: dict[str, str]
    gradients: dict[str, str]


class Logged(NamedTuple):
    """What a trainer has logged at a step (``metrics.jsonl``).

    Attributes:
        step: 1-based.
        epoch: 0-based.
        values: By name.
    """

    step: int
    epoch: int
    values: dict[str, float]


def hash_samples(indices: npt.NDArray[np.int64]) -> str:
    """Return a short hash of sample indices and their order."""
    return hashlib.blake2b(indices.astype("<i8").tobytes(), digest_size=8).hexdigest()


_WAIT_S = 0.2
_encode = json.JSONEncoder(check_circular=False).encode
# One for every step: what JSON's encoder would write of whole numbers and hex digits, at a quarter of its time.
_ENTRY = (
    '{"step": %d, "epoch": %d, "num_samples": %d, "samples": "%s", '
    '"loss": "%s", "gradient": "%s", "weights": "%s", "lr": "%s"}\n'
)


def _line(entry: Entry | Detail | Logged) -> str:
    return _ENTRY % entry if isinstance(entry, Entry) else _encode(entry._asdict()) + "\n"


@final
class Ledger:
    """Appends entries to a file; use as a context manager, or call `close`.

    Args:
        path: ``ledger.jsonl`` of the run directory, or another file of steps.
        last_step: Keep the entries up to this step, drop later ones (they will be written again).
        has_gaps: Whether steps may be missing; else that is a damage, which is reported.
        home: The directory of the file, where it is open already.

    Raises:
        CheckpointError: The disk does not take it (here and in all that writes); names the file and the room there is.
            Or it is no regular file.
    """

    def __init__(self, path: Path, last_step: int, *, has_gaps: bool = False, home: Directory | None = None) -> None:
        self._path = path
        with explained(path), entered(home or path.parent) as place:
            content = place.read(path.name) or b""
            kept, is_clean = _recover(content, last_step)
            if not is_clean and not has_gaps:
                _report(place, path, content, [line["step"] for line in kept], last_step)
            text = "".join(json.dumps(line) + "\n" for line in kept)
            with explained(path, len(text)):
                place.replace(path.name, text.encode())
                # Unbuffered: what the disk has once refused must not come again when the file is closed.
                self._file = place.append(path.name)
        self._waiting: list[Callable[[], Entry]] = []
        self._written = time.monotonic()

    def append(self, entry: Callable[[], Entry]) -> None:
        """Make an entry and write its line, at once or with the next call that comes `_WAIT_S` after the last write.

        So fast steps are written many at a time, which costs a fraction; a kill can lose those.
        """
        self._waiting.append(entry)
        if time.monotonic() - self._written > _WAIT_S:
            self.flush()

    def append_now(self, entry: Entry | Detail | Logged) -> None:
        """Write one line; it reaches the operating system before this returns."""
        self.flush()
        self._write(_line(entry))

    def flush(self) -> None:
        """Write what waits; it reaches the operating system before this returns."""
        waiting, self._waiting = self._waiting, []
        self._written = time.monotonic()
        if waiting:
            self._write("".join([_line(entry()) for entry in waiting]))

    def sync(self) -> None:
        """Put everything written so far on the disk, from any thread; `flush` first, from the one that appends."""
        with explained(self._path):
            os.fsync(self._file.fileno())

    def _write(self, text: str) -> None:
        data = memoryview(text.encode())
        with explained(self._path, len(data)):
            done = 0
            while done < len(data):
                done += self._file.write(data[done:])

    def close(self) -> None:
        """Write what waits and close the file; safe to call twice."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a ledger, empty if there is none; what follows a line that is none of ours is ignored."""
    entries: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError):
        for line in _read(path).splitlines():
            entry = _parse(line)
            if entry is None:
                break
            entries.append(entry)
    return entries


def damaged_from(path: Path) -> int | None:
    """Return the number, from 1, of the first whole line that is none of ours; None: there is none, or no ledger."""
    with contextlib.suppress(FileNotFoundError):
        for number, line in enumerate(_read(path).splitlines(keepends=True), start=1):
            if line.endswith(b"\n") and _parse(line) is None:  # the last one may be on its way
                return number
    return None


def _read(path: Path) -> bytes:
    with Directory.open(path.parent) as home:
        return home.read(path.name) or b""


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and type(entry.get("step")) is int else None


def _recover(content: bytes, last_step: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the entries up to `last_step`, and whether they are all of them, once each and in order."""
    entries = [entry for line in content.splitlines() if (entry := _parse(line)) is not None]
    by_step = {entry["step"]: entry for entry in entries if 1 <= entry["step"] <= last_step}
    kept = [by_step[step] for step in sorted(by_step)]
    return kept, [entry["step"] for entry in entries][:last_step] == list(range(1, last_step + 1))


def _report(home: Directory, path: Path, content: bytes, steps: list[int], last_step: int) -> None:
    """Keep a copy of a damaged ledger and say what is missing; training does not need it, comparing runs does."""
    missing = sorted(set(range(1, last_step + 1)) - set(steps))
    what = "its lines were not in order"
    if missing:
        what = f"{len(missing)} of the steps 1-{last_step} are missing, the first is {missing[0]}"
    place = ""
    entries = [_parse(line) for line in content.splitlines()]
    if None in entries or any(a["step"] >= b["step"] for a, b in itertools.pairwise(filter(None, entries))):
        names = (f"ledger.damaged-{number}.jsonl" for number in itertools.count(1))
        copy = next(name for name in names if home.status(name) is None)
        home.replace(copy, content)
        place = f" The file as it was found is kept as {copy}."
    warnings.warn(
        f"the ledger {path} is damaged: {what}.{place} The run goes on from its checkpoint with the same "
        "bits; only comparing its first steps with another run is no longer possible.",
        stacklevel=3,
    )
