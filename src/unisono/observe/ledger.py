"""The ledger: one line per step, written by the leader, by which runs are compared bit for bit.

A line is JSON with a fixed key order and no time in it, so two runs of one score have equal files. Floats are
written as hex (``float.hex``), exactly. Each line carries a hash of all lines before it (see `chain`). On resume the
lines after the checkpoint's step are cut off and written anew, and may be compared then (see `recomputed`). A damaged
ledger is set aside, never cut without a word; one whose lines have been changed is refused. `Unwritten` is what other
ranks keep of it, one of which may go on for it.
"""

import hashlib
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from unisono.errors import CheckpointError
from unisono.observe import chain
from unisono.observe.recomputed import Recomputed
from unisono.system.directory import Directory, entered
from unisono.system.disk import explained
from unisono.system.messages import warn

SET_ASIDE = r"ledger\.damaged-\d+-at-(\d+)\.jsonl"
"""Names of copies of damaged ledgers, with the step after which the run was resumed then."""
MEND = (
    "Only what compares runs, and `unisono audit`, need the lost lines. Hint: put back a copy of the file; an equal "
    "run, as the same command with another --out (out=), writes the same one, and `unisono audit` says whether it fits"
)


class Entry(NamedTuple):
    """What one step did."""

    step: int  #: 1-based.
    epoch: int  #: 0-based.
    num_samples: int  #: Samples in the step's batch.
    samples: str  #: Hash of their indices, in order.
    loss: str  #: Mean loss over them, as hex float.
    gradient: str  #: Checksum of the summed gradient's bits, before clipping.
    weights: str  #: Checksum of the weights' bits before the update.
    lr: str  #: Learning rate of the first parameter group in this update, as hex float.
    #: Sum of what the loss was weighted by, as hex float; empty, and left out, where by samples.
    samples_weight: str = ""
    #: Of several optimizers, each update's ``name``, ``loss``, ``gradient``, ``weights`` and ``lr``, in order. Above
    #: stand then the last one's loss and rate, the sum of the gradients' checksums, and the weights before the first.
    updates: Sequence[Mapping[str, str]] = ()
    #: How often an optimizer that computes the loss itself has done so; 0 for others, without a word.
    evaluations: int = 0


class Detail(NamedTuple):
    """What a step was made of, on request (``detail.jsonl``): what `unisono diff` names replica and parameter by."""

    step: int  #: 1-based.
    indices: list[int]  #: The batch's samples, in order.
    #: Mean loss of each replica's micro-batch, as hex floats; empty where the strategy has no replicas.
    losses: list[str]
    weights: dict[str, str]  #: Checksum of each parameter and buffer before the update, by name, in the model's order.
    gradients: dict[str, str]  #: Checksum of each gradient before clipping; a parameter without one is left out.


class Details(NamedTuple):
    """The same of a step with several optimizers."""

    step: int  #: 1-based.
    indices: list[int]  #: The batch's samples, in order.
    #: What each update was made of: ``losses``, ``weights`` and ``gradients`` as in `Detail`.
    updates: list[dict[str, Any]]


class Logged(NamedTuple):
    """What a program has recorded after a step (``metrics.jsonl``)."""

    step: int  #: 1-based; 0 before the first.
    epoch: int  #: 0-based.
    values: dict[str, float]  #: By name.


def hash_samples(indices: npt.NDArray[np.int64]) -> str:
    """Return a short hash of sample indices and their order."""
    return hashlib.blake2b(indices.astype("<i8").tobytes(), digest_size=8).hexdigest()


_WAIT_S = 0.02
_encode = json.JSONEncoder(check_circular=False).encode
# One for every step: what JSON's encoder would write of whole numbers and hex digits, at a quarter of its time.
_ENTRY = (
    '{"step": %d, "epoch": %d, "num_samples": %d, "samples": "%s", '
    '"loss": "%s", "gradient": "%s", "weights": "%s", "lr": "%s", %s"previous": "%s"}'
)


@final
class Ledger:
    """Appends entries to a file; use as a context manager, or call `close`.

    Args:
        path: ``ledger.jsonl`` of the run directory, or another file of steps.
        last_step: Keep the entries up to this step, drop later ones (they will be written again). None: keep all, of a
            process that has died a moment ago.
        has_gaps: Whether steps may be missing; else that is a damage, which is reported. Only a file of `Entry` has
            none, and only that one is chained.
        head: The chain value after `last_step`, as the checkpoint holds it; empty where it holds none.
        home: The directory of the file, where it is open already.
        compares: Whether lines that are cut off are compared with those of the same steps; a difference is warned of.

    Attributes:
        head: The chain value after the last line that has been written.
        last_step: That of the last entry which was kept.
        reached: That of the last entry which was there, kept or not; 0: there was none.
        torn_line: The last line, where it was none and is written again with its step; None: there was none.
        damaged_line: The first line that was none, torn or not; None: there was none.
        is_cut_off: Whether that was the last line.

    Raises:
        CheckpointError: A line up to `last_step` has been changed; or the disk does not take it (here and in all that
            writes); names the file and the line, or the room there is. Or it is no regular file.
    """

    def __init__(
        self,
        path: Path,
        last_step: int | None,
        *,
        has_gaps: bool = False,
        head: str = "",
        home: Directory | None = None,
        compares: bool = False,
    ) -> None:
        self._path = path
        with explained(path), entered(home or path.parent) as place:
            content = place.read(path.name) or b""
            lines = chain.parse_all(content)
            self.reached = max((entry["step"] for _, entry in lines if entry is not None), default=0)
            last_step = self.reached if last_step is None else last_step
            self.last_step = last_step
            kept, is_clean = _recover(lines, last_step, first=0 if has_gaps else 1)
            if not has_gaps:
                _refuse_changed(path, lines, last_step, head)
            is_torn = is_clean and bool(lines) and lines[-1][1] is None
            self.torn_line = len(lines) if is_torn else None
            self.damaged_line = next((number for number, (_, entry) in enumerate(lines, 1) if entry is None), None)
            self.is_cut_off = self.damaged_line == len(lines)
            if not is_clean and not has_gaps:
                _report(place, path, content, lines, list(kept), last_step)
            self.head = head or chain.head(kept.values())
            text = b"".join(line + b"\n" for line, _ in kept.values())
            with explained(path, len(text)):
                place.replace(path.name, text)
                # Unbuffered: what the disk has once refused must not come again when the file is closed.
                self._file = place.append(path.name)
        self._again = Recomputed(lines if compares else (), last_step)
        self._waiting: list[Callable[[], Entry]] = []
        self._written = time.monotonic()

    def append(self, entry: Callable[[], Entry]) -> None:
        """Make an entry and write its line, at once or with the next call that comes `_WAIT_S` after the last write.

        So fast steps are written many at a time, which costs a fraction; a kill can lose those.
        """
        self._waiting.append(entry)
        if time.monotonic() - self._written > _WAIT_S:
            self.flush()

    def append_now(self, entry: Entry | Detail | Details | Logged) -> None:
        """Write one line; it reaches the operating system before this returns."""
        self.flush()
        self._write(self._line(entry))

    def flush(self) -> None:
        """Write what waits; it reaches the operating system before this returns."""
        waiting, self._waiting = self._waiting, []
        self._written = time.monotonic()
        if waiting:
            self._write(b"".join([self._line(entry()) for entry in waiting]))

    def sync(self) -> None:
        """Put everything written so far on the disk, from any thread; `flush` first, from the one that appends."""
        with explained(self._path):
            os.fsync(self._file.fileno())

    def _line(self, entry: Entry | Detail | Details | Logged) -> bytes:
        if not isinstance(entry, Entry):
            return _encode(entry._asdict()).encode() + b"\n"
        extra = f'"samples_weight": "{entry.samples_weight}", ' if entry.samples_weight else ""
        extra += f'"updates": {_encode(entry.updates)}, ' if entry.updates else ""
        extra += f'"evaluations": {entry.evaluations}, ' if entry.evaluations else ""
        line = (_ENTRY % (*entry[:8], extra, self.head)).encode()
        self.head = chain.value_after(self.head, line)
        if told := self._again.difference(entry.step, line):
            warn(told)
        return line + b"\n"

    def _write(self, text: bytes) -> None:
        data = memoryview(text)
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
    """Return the entries of a ledger without the chain, empty if there is none; what follows no entry is ignored."""
    entries: list[dict[str, Any]] = []
    for _, entry in chain.parse_all(read_content(path)):
        if entry is None:
            break
        entry.pop(chain.PREVIOUS, None)
        entries.append(entry)
    return entries


def read_content(path: Path) -> bytes:
    """Return the bytes of a ledger, none where there is none; through no link."""
    try:
        with Directory.open(path.parent) as home:
            return home.read(path.name) or b""
    except FileNotFoundError:
        return b""


def _recover(lines: list[chain.Line], last_step: int, *, first: int) -> tuple[dict[int, chain.Line], bool]:
    """Return the lines up to `last_step` by step, and whether they are all of them, once each and in order."""
    entries = [(entry["step"], (line, entry)) for line, entry in lines if entry is not None]
    by_step = {step: line for step, line in entries if first <= step <= last_step}
    return dict(sorted(by_step.items())), [step for step, _ in entries][:last_step] == list(range(1, last_step + 1))


def _refuse_changed(path: Path, lines: list[chain.Line], last_step: int, head: str) -> None:
    """Raise where a line that stays is not the one that was written; those that are cut off may be anything."""
    stay = [(line, entry if entry and entry["step"] <= last_step else None) for line, entry in lines]
    found = chain.first_break(stay, {last_step: head} if head else {})
    if found is not None:
        raise CheckpointError(
            f"the ledger {path} has been changed: line {found[0]} {found[1]}. Hint: put back a copy of it; or move it "
            f"away, and the run goes on from step {last_step} with the same bits, without a record of the steps before."
        )


def _report(
    home: Directory, path: Path, content: bytes, lines: list[chain.Line], steps: list[int], last_step: int
) -> None:
    """Keep a copy of a damaged ledger and say what is missing; training does not need it, comparing runs does."""
    missing = sorted(set(range(1, last_step + 1)) - set(steps))
    what = "its lines were not in order"
    if missing:
        what = f"{len(missing)} of the steps 1-{last_step} are missing, the first is {missing[0]}"
    lost, place = f". {MEND}" if missing else "; the lines are in order now", ""
    entries = [entry for _, entry in lines]
    if None in entries or any(a["step"] >= b["step"] for a, b in itertools.pairwise(filter(None, entries))):
        names = (f"ledger.damaged-{number}-at-{last_step}.jsonl" for number in itertools.count(1))
        copy = next(name for name in names if home.status(name) is None)
        home.replace(copy, content)
        place = f" The file as it was found is kept as {copy}."
    warnings.warn(
        f"the ledger {path} is damaged: {what}.{place} The run goes on from its checkpoint with the same bits{lost}.",
        stacklevel=3,
    )


_LOOK_S = 1.0
_TAIL_BYTES = 4096  # longer than two lines of steps


@final
class Unwritten:
    """Entries of a ledger that another process writes, kept until its file shows them: where it dies, this one goes on.

    Args:
        path: Of the ledger.
        last_step: The step before the first entry to come; from there on each step has one.
        home: The directory of the file, held open.
    """

    def __init__(self, path: Path, last_step: int, home: Directory) -> None:
        self._path, self._home = path, home
        self._first = last_step + 1
        self._kept: list[Callable[[], Entry]] = []
        self._looked = time.monotonic()

    def append(self, entry: Callable[[], Entry]) -> None:
        """Keep the next step's entry."""
        self._kept.append(entry)
        if time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            written = max(0, _last_written(self._home, self._path.name) + 1 - self._first)
            del self._kept[:written]
            self._first += written

    def take_over(self) -> Ledger:
        """Return the ledger, now that the other process has died; what it had not written is written first."""
        ledger = Ledger(self._path, None, home=self._home)
        for entry in self._kept[max(0, ledger.last_step + 1 - self._first) :]:
            ledger.append(entry)
        ledger.flush()
        return ledger


def _last_written(home: Directory, name: str) -> int:
    """Return the step of a file's last whole line, 0 where there is none."""
    with home.reading(name) as (descriptor, size):
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    entries = [entry for _, entry in chain.parse_all(tail[: tail.rfind(b"\n") + 1]) if entry is not None]
    return entries[-1]["step"] if entries else 0
