"""Who failed first: reports that failing workers leave behind, and the judgement over them.

In: exceptions (in the worker), exit codes and reports (in the launcher). Out: one root cause, and its text.
When one rank fails, the others fail a moment later because their peer is gone; only the first failure helps
the reader. Must not import torch.
"""

import contextlib
import functools
import json
import os
import re
import signal
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from unisono.errors import ConfigError
from unisono.launchers.worker.error_kinds import is_final, is_mistake, is_secondary, text_of
from unisono.system.files import replace_file
from unisono.system.heartbeat import HeartbeatPage, Reading
from unisono.system.hints import of_a_mistake
from unisono.system.messages import folded, says_all, show_own_lines

_LOOK_S, _NUMBER = 0.01, re.compile(r"\b[0-9a-f]{16}\b|\d+")
_LIBRARY = str(Path(os.__file__).resolve().parent)
_ALL_FRAMES = "TORCH_SHOW_CPP_STACKTRACES"  # torch's own word for whoever wants to see all
_PACKAGE = str(Path(__file__).resolve().parents[2])
# Frames of the start-up itself: they come before the user's first line and tell nothing.
_STARTUP_FILES = re.compile(
    r"<frozen (runpy|importlib\..*)>|.*[/\\](runpy|unisono[/\\]launchers[/\\]worker[/\\]child)\.py"
)

# How long to wait for the other ranks' reports, in seconds: whether all fail alike, before and after the first step.
_ALIKE_WAIT_S = 0.5, 0.1

_HINT_ON_GLOO = (
    "Hint: where that speaks of gloo, the ranks passed tensors of unequal sizes to one collective, as a rank without "
    "samples may; --backend shm names both."
)

_SAME_STEPS = (
    "Hint: all ranks do the same number of steps; break on a value that all have, as the loss that run.step returns."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureReport:
    """What one worker says about its own failure."""

    rank: int  #: Rank of the worker.
    type_name: str  #: Name of the exception's class.
    message: str  #: The exception's text.
    #: The traceback from the user's first frame on; frames of torch and of unisono are counted, not shown.
    traceback: str
    #: ``file:line`` of the innermost frame outside unisono and Python's library, empty if there is none.
    location: str = ""
    #: Whether unisono has raised it on purpose: its message says all, no traceback is needed.
    is_unisono: bool = False
    is_secondary: bool  #: Whether it looks like the consequence of another rank's failure.
    is_config: bool = False  #: Whether a setting is wrong: then this is what the person must read.
    is_final: bool = False  #: Whether the same program must fail again.
    #: Whether it is a mistake in the program, which comes again where all ranks met it alike before the first step.
    is_mistake: bool = False
    exit_code: int  #: The worker's exit code.
    time_s: float  #: CLOCK_MONOTONIC, which all processes of a host share.

    @classmethod
    def from_exception(cls, error: BaseException, rank: int, exit_code: int) -> "FailureReport":
        """Return the report of `error`, just caught in the worker of `rank`."""
        show_own_lines(error)
        kept = error.__traceback__
        if note := of_a_mistake(error):
            error.add_note(note)
        while kept is not None and _STARTUP_FILES.fullmatch(kept.tb_frame.f_code.co_filename):
            kept = kept.tb_next
        text = "".join(traceback.format_exception(type(error), error, kept))
        return cls(
            rank=rank,
            type_name=type(error).__name__,
            message="\n".join([text_of(error), *getattr(error, "__notes__", ())]),
            traceback=text if os.environ.get(_ALL_FRAMES) == "1" else folded(text),
            location=location_of(kept),
            is_unisono=says_all(error),
            is_secondary=is_secondary(error),
            is_config=isinstance(error, ConfigError),
            is_final=is_final(error),
            is_mistake=is_mistake(error),
            exit_code=exit_code,
            time_s=time.monotonic(),
        )

    def is_like(self, other: "FailureReport") -> bool:
        """Whether two ranks have failed alike: with the same exception at the same line, but for numbers and hashes."""
        return (self.type_name, self.location, self.is_secondary, _NUMBER.sub("", self.message)) == (
            other.type_name, other.location, other.is_secondary, _NUMBER.sub("", other.message)
        )  # fmt: skip

    def save(self, directory: str) -> None:
        """Write the report atomically: the launcher sees all of it or nothing."""
        path = Path(directory) / f"error-{self.rank}.json"
        replace_file(path, json.dumps(asdict(self)).encode(), is_lasting=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerExit:
    """The end of one worker, seen from outside."""

    rank: int  #: Rank of the worker.
    code: int  #: Exit code; -n for death by signal n.
    time_s: float  #: CLOCK_MONOTONIC when it was seen.


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One rank's failure, from its report if it left one, else from its exit."""

    rank: int
    time_s: float
    code: int
    report: FailureReport | None = None
    alike: tuple[int, ...] = ()  #: All ranks that have failed alike, this one first; empty where no other has.

    @property
    def is_secondary(self) -> bool:
        """Whether another rank's failure is the likely cause."""
        return self.report is not None and self.report.is_secondary

    @property
    def is_config(self) -> bool:
        """Whether a setting is wrong."""
        return self.report is not None and self.report.is_config

    @property
    def exit_code(self) -> int:
        """Exit code in the shell's way: 128 + n for death by signal n."""
        if self.report is not None:
            return self.report.exit_code
        return 128 - self.code if self.code < 0 else self.code


def load_reports(directory: str, ranks: Iterable[int]) -> dict[int, FailureReport]:
    """Return the reports of these ranks that lie in `directory`.

    Where a rank has failed by itself, the others may be about to: waits for a moment until all have said so.
    """
    wanted, reports = [*ranks], dict[int, FailureReport]()
    began = time.monotonic()
    while True:
        for rank in wanted:
            if rank not in reports:
                with contextlib.suppress(FileNotFoundError):
                    text = (Path(directory) / f"error-{rank}.json").read_text()
                    reports[rank] = FailureReport(**json.loads(text))
        found = [*reports.values()]
        if not found or len(found) == len(wanted) or not all(report.is_like(found[0]) for report in found):
            return reports
        patience = _ALIKE_WAIT_S[any(map(functools.partial(_has_stepped, directory), reports))]
        if found[0].is_secondary or time.monotonic() - began >= patience:
            return reports
        time.sleep(_LOOK_S)


def _has_stepped(directory: str, rank: int) -> bool:
    """Whether a worker of this launch has finished a step."""
    try:
        return HeartbeatPage(Path(directory) / f"heartbeat-{rank}").read().done > 0
    except FileNotFoundError:
        return False


def find_root(exits: Iterable[WorkerExit], reports: Mapping[int, FailureReport]) -> Failure | None:
    """Return the failure that caused the others: a wrong setting, else the earliest one that does not blame a peer.

    Args:
        exits: The workers that ended before the launcher stopped any.
        reports: Reports by rank, also of workers that have not ended yet.

    Returns:
        The root cause, of those that have failed alike the lowest rank; the earliest failure if all blame a peer; None
        if nobody failed.
    """
    failures = {end.rank: Failure(rank=end.rank, time_s=end.time_s, code=end.code) for end in exits if end.code != 0}
    for rank, report in reports.items():
        failures[rank] = Failure(rank=rank, time_s=report.time_s, code=report.exit_code, report=report)
    root = min(failures.values(), key=lambda f: (not f.is_config, f.is_secondary, f.time_s), default=None)
    if root is None or root.report is None or root.is_secondary:
        return root
    own = root.report
    alike = sorted(rank for rank, report in reports.items() if report.is_like(own))
    return replace(failures[alike[0]], alike=tuple(alike)) if len(alike) > 1 else root


def describe(
    failure: Failure, workers: int, ended: Mapping[int, Reading], running: Iterable[int], known: str = "",
    step: int = 0,
) -> str:  # fmt: skip
    """Return the text of a `WorkerFailed`.

    Args:
        failure: That of the rank which failed first.
        workers: Number of ranks.
        ended: What ranks have told that have ended normally.
        running: Those that have not ended.
        known: What is known of a death by SIGKILL.
        step: The step in progress in the rank that failed; 0 before the first.
    """
    who = f"rank {failure.rank} of {workers}"
    if failure.alike:
        who = f"ranks {_ranks(failure.alike)} of {workers}"
    what = _describe_report(failure.report) if failure.report else _describe_exit(failure, known)
    if len(failure.alike) == workers > 1:
        who = "both ranks" if workers == 2 else f"all {workers} ranks"
        what = what.replace("failed with", "failed alike with", 1)
    text = f"{who} {what}"
    if failure.is_secondary:
        missing = _describe_missing(failure, ended, step)
        text = f"{missing}\n{text}" if missing else text
        text += "\nIts peer went away or did not answer, and no rank reported a failure of its own. "
        others = _ranks(running)
        if ended:
            text += f"Ranks that had ended normally: {_ranks(ended)}; still running: {others}."
        else:
            text += f"Still running: {others}. Hint: look for a rank that skips what the others call."
        if ended and not missing:
            text += f" So nothing has failed there: the program left its loop (break, return). {_SAME_STEPS}"
    return text


def _describe_missing(failure: Failure, ended: Mapping[int, Reading], step: int) -> str:
    """Say which ranks had ended where another one waited for them; empty where they have told nothing."""
    told = {rank: reading for rank, reading in ended.items() if reading.pid}
    if not told or failure.report is None:
        return ""
    done = min(reading.done for reading in told.values())
    first = [rank for rank, reading in told.items() if reading.done == done]
    who = f"rank{'s' if len(first) > 1 else ''} {_ranks(first)}"
    place = f" at {failure.report.location}" if failure.report.location else ""
    if step > done + 1 or (step == done + 1 and told[first[0]].last > done):
        return (
            f"{who} left its loop after step {done}, while rank {failure.rank} was in step {step}{place}. {_SAME_STEPS}"
        )
    return (
        f"{who} ended normally after step {done}, while rank {failure.rank} waited for it{place}. Hint: every rank "
        "must make that call: no `if run.world.is_leader:`, and no other `if` on the rank, around it."
    )


def describe_kill(killed: str, memory_kills: int) -> str:
    """Return what is known about a death by SIGKILL."""
    if killed:
        return killed
    if memory_kills:
        return (
            "probably out of memory: since the start the kernel has counted "
            f"{memory_kills} out-of-memory kill{'s' if memory_kills > 1 else ''}. "
            "Hint: fewer workers, a smaller batch_size, or more memory."
        )
    return "from outside: no out-of-memory kill has been counted since the start."


def _describe_exit(failure: Failure, known: str) -> str:
    if failure.code >= 0:
        return f"exited with code {failure.code} and left no report (os._exit, or a library ended the process)."
    name = signal.Signals(-failure.code).name if -failure.code in set(signal.Signals) else f"signal {-failure.code}"
    text = f"was killed by {name} (exit code {failure.exit_code})"
    if -failure.code == signal.SIGKILL:
        return f"{text}, {known}" if known else f"{text}."
    if -failure.code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        text += ": a fault in native code; its stack is in the worker's output."
        return f"{text} {_HINT_ON_GLOO}" if -failure.code == signal.SIGABRT else text
    return f"{text}."


def _describe_report(report: FailureReport) -> str:
    place = f" ({report.location})" if report.location else ""
    if report.type_name == "SystemExit":
        return f"called sys.exit({report.message}){place}; exit code {report.exit_code}."
    if report.is_unisono:
        return f"failed with {report.type_name}: {report.message}{place}"
    summary = report.message.partition("\n")[0]
    if report.type_name == "EOFError" and report.rank:
        summary += ". Hint: only rank 0 reads what is typed; take it there and broadcast it, or pass it as an argument."
    return f"failed with {report.type_name}: {summary}\n\n{report.traceback.rstrip()}"


def _ranks(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks))) or "none"


def location_of(trace: TracebackType | None) -> str:
    """Return the innermost place outside unisono, torch and Python's own library: there is something to look at."""
    location = ""
    for frame in traceback.extract_tb(trace):
        path = os.path.realpath(frame.filename)
        is_pythons = frame.filename.startswith("<") or (path.startswith(_LIBRARY + os.sep) and "-packages" not in path)
        if not is_pythons and "-packages/torch/" not in path and not path.startswith(_PACKAGE + os.sep):
            location = f"{frame.filename}:{frame.lineno}"
    return location
