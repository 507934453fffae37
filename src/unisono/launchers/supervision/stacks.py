"""Where the workers are, in plain words: stack dumps read and summed up.

In: what faulthandler has written on `STACK_SIGNAL` (it does so without the interpreter's lock, so a deadlocked worker
answers too). Out: lines for a person. Starts nothing, sends nothing.

Source: https://docs.python.org/3/library/faulthandler.html (format of the dump)
"""

import itertools
import re
import signal
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from unisono.system.heartbeat import LEFT_LOOP, QUIET, Reading

# A real-time signal: programs and schedulers use SIGUSR1 and SIGUSR2 for themselves.
STACK_SIGNAL: int = getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 4) + 4
_PACKAGE = str(Path(__file__).resolve().parents[2])
_STANDARD = sysconfig.get_path("stdlib") + "/"
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_START = re.compile(r"^<frozen runpy>|/unisono/launchers/worker/child\.py$")  # what calls the program
_MOST_FRAMES = 12
_OWNERS = {"run.py": "run", "run_state.py": "run", "trainer.py": "trainer", "launcher_link.py": "run"}
_STEPS = {"over": "steps"}  # what passes on the steps of a loop
_EVERY_RANK = (
    "Hint: every rank must call it: no `if run.world.is_leader:`, and no other `if` on the rank, around it; all ranks "
    "leave their loop after the same step."
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def is_users(self) -> bool:
        """Whether it is neither ours nor a library's."""
        is_library = "/site-packages/" in self.file or "/dist-packages/" in self.file
        return not is_library and not self.file.startswith((_PACKAGE + "/", _STANDARD, "<"))

    @property
    def is_ours(self) -> bool:
        """Whether it belongs to this package."""
        return self.file.startswith(_PACKAGE + "/")


@final
class DumpFilter:
    """Leaves our own frames that have called the program out of the dump of a fault in native code.

    So it does with threads that are ours alone. Where the fault is in code of ours, its frames stay.
    """

    def __init__(self) -> None:
        self._is_inside = False
        self._thread: list[bytes] = []  # lines of the thread that is being read

    def feed(self, line: bytes) -> list[bytes]:
        """Return the lines to be shown now that this one has come; most are shown as they come."""
        if not self._is_inside:
            self._is_inside = line.startswith(b"Fatal Python error: ")
            return [line]
        text = line.decode(errors="replace")
        if _THREAD.match(text) or (self._thread and _FRAME.match(text)):
            found = [] if _FRAME.match(text) else self.flush()
            self._thread.append(line)
            return found
        self._is_inside = not line.startswith(b"Extension modules: ")
        return [*self.flush(), line] if line.strip() or not self._thread else self.flush()

    def flush(self) -> list[bytes]:
        """Return what is to be shown of the thread that has been read; empty where it is ours alone."""
        lines, self._thread = self._thread, []
        frames = {
            line: Frame(*found.groups()) for line in lines if (found := _FRAME.match(line.decode(errors="replace")))
        }
        is_ours = any(each.is_ours for each in frames.values()) and not any(each.is_users for each in frames.values())
        if not lines or (is_ours and not lines[0].startswith(b"Current")):
            return []
        first = next(
            (place for place, line in enumerate(lines) if line in frames and frames[line].is_users), len(lines)
        )
        own = {line for line, each in frames.items() if each.is_ours or each.file.startswith("<frozen runpy")}
        return [*lines[:first], *(line for line in lines[first:] if line not in own), b""]


def stack_file(directory: str | Path, rank: int) -> Path:
    """Return where a worker's dumps go."""
    return Path(directory) / f"stack-{rank}.txt"


def main_thread(dump: str) -> list[Frame]:
    """Return the frames of the main thread in the last dump of a text, innermost first; empty when there is none."""
    threads: list[list[Frame]] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (found := _FRAME.match(line)) and not found[1].startswith("<frozen importlib"):
            threads[-1].append(Frame(*found.groups()))
    return threads[-1] if threads else []  # the oldest thread is listed last


def waits_for_others(frames: Iterable[Frame]) -> str:
    """Return the collective in which a stack waits, empty for none: our outermost function that moves bytes.

    A sum along the tree calls for data and losses in its midst: what waits there does not wait for other ranks.
    """
    name = ""
    for frame in frames:
        if frame.file.startswith(f"{_PACKAGE}/collectives/"):
            name = frame.function
        elif frame.is_ours:
            break
        elif re.search(r"/torch/distributed/distributed_c10d\.py$", frame.file) and not frame.function.startswith("_"):
            name = name or f"torch.distributed.{frame.function}"
    return name


def call_of(frames: list[Frame]) -> str:
    """Return the call of the program's own in which a stack waits for other ranks; empty where it does not wait."""
    collective = waits_for_others(frames)
    inner = itertools.takewhile(lambda frame: not frame.is_users, frames if collective else [])
    for frame in reversed([*inner]):
        if (owner := _OWNERS.get(frame.file.removeprefix(f"{_PACKAGE}/train/"))) and not frame.function.startswith("_"):
            return f"{owner}.{_STEPS.get(frame.function, frame.function)}"
    return collective


def describe_place(rank: int, reading: Reading, frames: list[Frame]) -> str:
    """Return one line: where a rank is, and whether it waits for the others."""
    doing = f", doing {reading.phase}" if reading.phase else ""
    at_step = f"step {reading.step}{doing}"
    if reading.phase == LEFT_LOOP:
        at_step = f"has left its loop after step {reading.done}" if reading.done else "has left its loop"
    place = next((frame for frame in frames if frame.is_users), frames[0] if frames else None)
    where = f" at {place}" if place else ""
    if call := call_of(frames):
        return f"rank {rank}: waits for the other ranks in {call}, {at_step}{where}"
    if not frames and reading.pid and reading.state == QUIET:
        return f"rank {rank}: has closed its run after step {reading.done}"
    if not frames:
        return f"rank {rank}: {at_step}; it has not shown its stack"
    return f"rank {rank}: {at_step},{where}"


def waits_in_vain(stacks: Mapping[int, list[Frame]]) -> bool:
    """Whether every rank waits for the others, and not all in one call: none of them can go on."""
    calls = {call_of(frames) for frames in stacks.values()}
    return len(calls) > 1 and "" not in calls


def describe_hang(
    seconds: float, readings: dict[int, Reading], stacks: dict[int, list[Frame]], ended: Mapping[int, Reading]
) -> str:
    """Return the report on a run in which nothing moves; `ended`: what ranks have told that have ended well."""
    calls = {rank: call_of(stacks[rank]) for rank in readings}
    late = [rank for rank in readings if not calls[rank]]
    lines = [f"nothing has moved for {seconds:.0f} s; the workers are left alone."]
    lines += [f"  {describe_place(rank, readings[rank], stacks[rank])}" for rank in readings]
    lines += [f"  rank {rank}: has ended after step {reading.done}" for rank, reading in ended.items()]
    waiting = ", ".join(dict.fromkeys(filter(None, calls.values())))
    if late and len(late) < len(readings):
        lines.append(f"  The others wait for rank {', '.join(map(str, late))}.")
    if waits_in_vain(stacks):
        lines.append(f"  None of them can go on: they wait in different calls. {_EVERY_RANK}")
    elif waiting and (ended or len(late) < len(readings)) and (late or ended):
        lines.append(f"  If the others never call {waiting}, this lasts until the timeout. {_EVERY_RANK}")
    for rank in late:
        shown = [frame for frame in stacks[rank] if not _START.search(frame.file)][:_MOST_FRAMES]
        if shown:
            lines += [f"  stack of rank {rank}, innermost call first:", *(f"    {frame}" for frame in shown)]
    return "\n".join(lines)
