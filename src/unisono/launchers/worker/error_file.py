"""torchrun's error file: what a program says about its own failure where no exception reaches its first code.

In: the file named by ``TORCHELASTIC_ERROR_FILE``, which ``record`` of ``torch.distributed.elastic`` writes, also in a
process that the worker has started. Out: reports of failures. Must not import torch.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unisono.launchers.supervision.failure import FailureReport, WorkerExit
from unisono.launchers.worker.error_kinds import blames_peer

ERROR_VARIABLE = "TORCHELASTIC_ERROR_FILE"
_MOST_BYTES = 1 << 20


def error_file(directory: str, rank: int) -> Path:
    """Return where a worker's program writes its error."""
    return Path(directory) / f"elastic-error-{rank}.json"


def with_recorded(
    directory: str, exits: Iterable[WorkerExit], reports: Mapping[int, FailureReport]
) -> dict[int, FailureReport]:
    """Return the reports, and one from its error file for each failed worker that left none or only called sys.exit."""
    completed = dict(reports)
    ends = {end.rank: end for end in exits if end.code}
    for rank in {*ends, *reports}:
        own = reports.get(rank)
        if own is None or own.type_name == "SystemExit":
            recorded = _read(error_file(directory, rank))
            if recorded is not None:
                code, time_s = (own.exit_code, own.time_s) if own else (_shell_code(ends[rank].code), ends[rank].time_s)
                completed[rank] = _report(rank, *recorded, code, time_s)
    return completed


def _read(file: Path) -> tuple[str, str] | None:
    """Return message and stack, None where there are none."""
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            text = opened.read(_MOST_BYTES).decode(errors="replace")
        try:
            said: Any = json.loads(text)
        except (ValueError, RecursionError):
            return (text, "") if text.strip() else None  # of a handler of the program's own
        said = said.get("message", said) if isinstance(said, dict) else said
        if not isinstance(said, dict):
            return str(said), ""
        extra = said.get("extraInfo")
        stack = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
        return str(said.get("message", "")), str(stack)
    return None


def _report(rank: int, message: str, stack: str, exit_code: int, time_s: float) -> FailureReport:
    named = re.match(r"([A-Za-z_][\w.]*): ?(.*)", message, re.DOTALL)
    kind, text = (named[1].rpartition(".")[2], named[2]) if named else ("an error of its own", message)
    return FailureReport(
        rank=rank,
        type_name=kind,
        message=text,
        traceback=stack or message,
        is_secondary=blames_peer(kind, text),
        exit_code=exit_code,
        time_s=time_s,
    )


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code
