"""Where the time of steps goes, on every rank: what a rank is doing at any moment, added up by phase and written down.

A rank is in exactly one phase at a time, so the phases of a step add up to its whole time, to the nanosecond. A stamp
costs one look at the clock and no system call; nothing is waited for. On a GPU the times are the host's: kernels in
flight are waited for where the host reads a result (the loss, at the end of ``backward``).

The file (``phases/rank-R.jsonl`` of the run directory; no torch) is described in docs/observe.md.
"""

import contextlib
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from unisono.errors import ConfigError
from unisono.system.descriptors import File
from unisono.system.directory import Directory

PHASES = ("data", "forward", "backward", "reduce", "update", "checkpoint", "evaluate", "other")
DATA, FORWARD, BACKWARD, REDUCE, UPDATE, CHECKPOINT, EVALUATE, OTHER = range(len(PHASES))

FOLDER = "phases"
_FILE = re.compile(r"rank-.*\.jsonl")
_FLUSH_EVERY_NS = 1_000_000_000
_COUNT = len(PHASES)
_SHOWN = 5
_LOST = "What these lines said of the time of steps is lost; weights, ledger and checkpoints are not touched by it."


@final
class PhaseClock:
    """Knows the phase a rank is in, and how long it was in each; one per run and rank."""

    def __init__(self) -> None:
        self._totals = [0] * len(PHASES)
        self._waiting: list[tuple[int, int, int, Sequence[int]]] = []  # step, beginning, replicas, nanoseconds by phase
        self.num_steps = 0  #: Recorded steps.
        self.place: dict[str, int] = {}  #: ``local_workers`` and ``cores`` of this rank's host, where they are known.
        self.replicas = 0  #: That this rank has computed in the step; counted by who hands them out.
        self._spent = [0] * len(PHASES)
        self.phase, self._since = OTHER, time.perf_counter_ns()  #: The phase it is in.
        self._step, self._began = 0, 0
        self._handed_on = self._since
        self._log: _PhaseLog | None = None
        self._last = 0  # the last step, as far as it has been told

    @property
    def totals(self) -> list[int]:
        """Nanoseconds by phase, over all recorded steps of this launch."""
        self._hand_on()
        return self._totals

    def open(self, run: Directory, facts: Mapping[str, Any]) -> None:
        """Write the records of steps to this rank's file from now on.

        Args:
            run: The run directory; file and folder are made where they are missing.
            facts: What the launch's first line says besides the clock: rank, world size, ...
        """
        self.close()
        self._log = _PhaseLog(run, {**facts, **self.place})

    def ends(self, last: int) -> None:
        """Say which step is to be the last one."""
        if self._log is not None and last != self._last and last < sys.maxsize:  # that of a stream is not known
            self._last = last
            self._log.append(json.dumps({"last": last}))

    def lost(self, rank: int, step: int) -> None:
        """Say that another rank has died, in which step, and that this one goes on without it."""
        if self._log is not None:
            self._log.append(json.dumps({"lost": rank, "step": step, "wall_ns": time.time_ns()}))

    def enter(self, phase: int) -> int:
        """Be in `phase` from now on; returns the one before."""
        now, before = time.perf_counter_ns(), self.phase
        self._spent[before] += now - self._since
        self.phase, self._since = phase, now
        return before

    def share(self, phase: int) -> float:
        """Return the share of the recorded time, 0 to 1, that was spent in a phase; 0 before the first step."""
        totals = self.totals
        return totals[phase] / max(1, sum(totals))

    @contextlib.contextmanager
    def within(self, phase: int) -> Iterator[None]:
        """Be in `phase` inside, and in the one before afterwards."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def begin(self, step: int) -> None:
        """End the record of the step before, if it was done, and begin that of `step`."""
        self.end(step - 1)
        self._spent, self.replicas = [0] * _COUNT, 0
        self._step, self._began = step, self._since

    def end(self, done: int) -> None:
        """End the record that has begun; one of a step after `done` is dropped. Safe to call twice."""
        self.enter(OTHER)
        if 0 < self._step <= done:
            self.num_steps += 1
            self._waiting.append((self._step, self._began, self.replicas, self._spent))
            if self._since - self._handed_on > _FLUSH_EVERY_NS:
                self._hand_on()
        self._step = 0

    def _hand_on(self) -> None:
        """Add up the steps that wait, and let them be written: many at a time, which costs a fraction."""
        waiting, self._waiting = self._waiting, []
        self._handed_on = self._since
        if waiting:
            columns = zip(*(spent for *_, spent in waiting), strict=True)
            self._totals = [total + sum(column) for total, column in zip(self._totals, columns, strict=True)]
            if self._log is not None:
                self._log.write(waiting)

    def close(self) -> None:
        """Write what is not written; safe to call twice."""
        self._hand_on()
        if self._log is not None:
            self._log.close()
            self._log = None


class _PhaseLog:
    """Appends records to a file; a full disk costs the records, not the run."""

    def __init__(self, run: Directory, facts: Mapping[str, Any]) -> None:
        self._file: File | None = None
        self._origin = time.perf_counter_ns()
        head = {"phases": list(PHASES), **facts, "wall_ns": time.time_ns()}
        try:
            with run.child(FOLDER, make=True) as folder:
                self._file = folder.append(f"rank-{facts['rank']}.jsonl")
            is_new = os.fstat(self._file.fileno()).st_size == 0
            self._file.write((("" if is_new else "\n") + json.dumps(head) + "\n").encode())  # after a cut-off line
        except (OSError, ConfigError) as error:
            self._give_up(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, records: Sequence[tuple[int, int, int, Sequence[int]]]) -> None:
        origin = self._origin
        self.append("\n".join(
            f'{{"step":{step},"at_ns":{began - origin},"replicas":{replicas},"ns":{ns}}}'
            for step, began, replicas, ns in records
        ))  # fmt: skip

    def append(self, lines: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(f"{lines}\n".encode())
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        warnings.warn(
            f"step phases are no longer written: {error}. Nothing but the timing of steps is lost.", stacklevel=2
        )
        self.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPhases:
    """Where one rank's time went in one step: from its beginning to that of the next, or to the loop's end."""

    step: int  #: 1-based.
    launch: int  #: Number of the launch of the run directory that has done it.
    rank: int  #: Of the rank.
    world_size: int  #: Ranks of that launch.
    began_ns: int  #: When it began, in nanoseconds since 1970, by the clock of the rank's host.
    ns: dict[str, int]  #: Nanoseconds by phase; they add up to the step's whole time.
    replicas: int = 0  #: How many replicas it has computed; 0 where an earlier version has written it.
    #: The last step in the ledger when that launch opened it; 0: there was none, or an earlier version has written it.
    reached: int = 0
    local_workers: int = 0  #: Ranks on its host; 0: unknown.
    cores: int = 0  #: Cores that they may use together; 0: unknown.
    last: int = 0  #: The step that is to be the last, as far as it had been told then; 0: it is not known.


def read_phases(run_directory: Path) -> list[StepPhases]:
    """Return what all ranks of all launches have written, by launch, step and rank; empty if there is nothing.

    A line that was cut off by a kill, or damaged, is passed over. A step that several launches have done (a crash lies
    between) appears once for each.
    """
    return read_with_damage(run_directory)[0]


def read_with_damage(run_directory: Path) -> tuple[list[StepPhases], str]:
    """Return what `read_phases` does, and which lines are damaged, in words; empty: none is."""
    try:
        with Directory.open(run_directory) as run, run.child(FOLDER) as folder:
            files = {name: folder.read(name) or b"" for name in sorted(folder.names()) if _FILE.fullmatch(name)}
    except FileNotFoundError:
        return [], ""
    found, bad = list[StepPhases](), list[str]()
    for name, content in files.items():
        lines = list[int]()
        found += _records(content, lines)
        if lines:
            shown = ", ".join(map(str, lines[:_SHOWN])) + (", ..." if len(lines) > _SHOWN else "")
            bad.append(f"{run_directory / FOLDER / name} (line{'s' * (len(lines) > 1)} {shown})")
    found.sort(key=lambda record: (record.launch, record.step, record.rank))
    return found, f"Damaged: {'; '.join(bad)}. {_LOST}" if bad else ""


def has_begun(run_directory: Path, launch: int) -> bool:
    """Say whether a launch has come to its loop over steps: any rank has written its line."""
    try:
        with Directory.open(run_directory) as run, run.child(FOLDER) as folder:
            return any(f'"launch": {launch},'.encode() in (folder.read(name) or b"") for name in folder.names())
    except FileNotFoundError:
        return False


def is_line(entry: Any) -> bool:
    """Say whether a line's entry is one that ranks write."""
    if not isinstance(entry, dict):
        return False
    if isinstance(names := entry.get("phases"), list):
        return all(isinstance(name, str) for name in names) and _has(entry, "launch", "rank", "world_size", "wall_ns")
    if "lost" in entry:
        return _has(entry, "lost", "step", "wall_ns")
    if isinstance(spent := entry.get("ns"), list):
        return all(type(each) is int for each in spent) and _has(entry, "step", "at_ns")
    return _has(entry, "last")


def _has(entry: Mapping[str, Any], *names: str) -> bool:
    """Say whether an entry has these names with whole numbers; what else it has may be missing, but is one, too."""
    return all(type(entry.get(name)) is int for name in names) and all(
        type(entry.get(name, 0)) is int for name in ("reached", "replicas", "local_workers", "cores")
    )


def _records(content: bytes, bad: list[int]) -> Iterator[StepPhases]:
    """Yield the records of a file, and add to `bad` the numbers of damaged lines, from 1.

    What stands alone before a launch's line, or at the end, and is no JSON, was cut off by a kill: no damage.
    """
    head: dict[str, Any] | None = None
    reached, last, cut = 0, 0, 0
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line:
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            bad += [cut] if cut else []
            cut = number
            continue
        is_whole = is_line(entry)
        bad += [cut] if cut and not (is_whole and "phases" in entry) else []
        cut = 0
        if not is_whole or ("ns" in entry and head is not None and len(entry["ns"]) != len(head["phases"])):
            bad.append(number)
        elif "phases" in entry:
            head, reached = entry, entry.get("reached", 0)
        elif "last" in entry:
            last = entry["last"]
        elif head is not None and "ns" in entry:
            yield StepPhases(
                step=entry["step"], launch=head["launch"], rank=head["rank"], world_size=head["world_size"],
                began_ns=head["wall_ns"] + entry["at_ns"], ns=dict(zip(head["phases"], entry["ns"], strict=True)),
                replicas=entry.get("replicas", 0), reached=reached, last=last,
                local_workers=head.get("local_workers", 0), cores=head.get("cores", 0),
            )  # fmt: skip
