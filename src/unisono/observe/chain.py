"""The chain through a ledger: each line names what was before it, so that no past line can be changed unseen. Pure.

The chain value after a line is the first half of SHA-256 over the value before it and the line's bytes; before the
first line it is `START`. A line carries the value before it as its last entry, ``previous``. The value after the last
line, the *head*, stands for all lines up to there: a checkpoint holds the head at its step. It follows from the steps
alone, so equal runs have equal heads, whoever computed them and however often they were interrupted.

Lines of version 0.1.0 carry nothing. They count in the same way: the first line that carries a value vouches for all
of them together.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

PREVIOUS = "previous"
START = "0" * 32
"""The value before the first line: 128 bits, as every value."""
Line = tuple[bytes, dict[str, Any] | None]
"""A line without its end, and its entry; None where it is none of ours."""


def value_after(value: str, line: bytes) -> str:
    """Return the chain value after a line (without its end), from the one before it; 32 hex digits both."""
    return hashlib.sha256(value.encode() + line).hexdigest()[:32]


def head(lines: Iterable[Line]) -> str:
    """Return the chain value after all `lines`; where some are missing, what the later ones carry is believed."""
    value = START
    for line, entry in lines:
        if entry is not None:
            value = value_after(str(entry.get(PREVIOUS, value)), line)
    return value


def first_break(lines: Iterable[Line], heads: Mapping[int, str]) -> tuple[int, str] | None:
    """Return where a ledger is not what was written, as line number (from 1) and reason; None: it holds together.

    Only neighbours are compared: a step that is missing, or a line that is no entry, is another damage, which everybody
    can see. After it, the next line that carries a value is believed.

    Args:
        lines: All of them, in the order of the file, as `parse_all` returns them.
        heads: Chain values by step, as checkpoints and results hold them; steps that have no line are passed over.
    """
    value: str | None = START  # None: unknown, after a gap
    last, is_chained = 0, False
    for number, (line, entry) in enumerate(lines, start=1):
        if entry is None:
            continue
        step, carried = entry["step"], entry.get(PREVIOUS)
        value = value if step == last + 1 else None
        if carried is None and is_chained:
            return number, f"carries no {PREVIOUS!r}, as the lines before it do"
        if carried is not None:
            if value is not None and carried != value:
                return max(1, number - 1), f"is not the line that line {number} was written after"
            value, is_chained = str(carried), True
        value, last = None if value is None else value_after(value, line), step
        if value is not None and heads.get(step, value) != value:
            return number, f"is not the line that was there when step {step} was saved"
    return None


def parse_all(content: bytes) -> list[Line]:
    """Return the lines of a file with their entries."""
    return [(line, _parse(line)) for line in content.splitlines()]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and type(entry.get("step")) is int else None
