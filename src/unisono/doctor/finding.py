"""One line of what the doctor has to say."""

from dataclasses import dataclass
from typing import Literal, final

Status = Literal["ok", "warn", "fail"]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What was looked at, how it is, and what to do."""

    name: str  #: What was looked at: a part of the machine, or the rule that a script breaks.
    #: ``ok``; ``warn``: a run starts, but slower or with a trap; ``fail``: it breaks, or its result is wrong.
    status: Status
    detail: str  #: What was seen.
    hint: str = ""  #: What to do about it; empty where there is nothing to do.
    line: int | None = None  #: Line of the script, from 1; None for the machine.


def ok(name: str, detail: str) -> Finding:
    """Return that all is well."""
    return Finding(name=name, status="ok", detail=detail)


def warn(name: str, detail: str, hint: str) -> Finding:
    """Return that a run starts, but slower or with a trap."""
    return Finding(name=name, status="warn", detail=detail, hint=hint)


def fail(name: str, detail: str, hint: str) -> Finding:
    """Return that a run breaks, or that its result is wrong."""
    return Finding(name=name, status="fail", detail=detail, hint=hint)
