"""What is wrong with a ledger, or metrics, that nobody writes now: damaged, lost, cut off or changed lines (files)."""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.observe import chain
from unisono.observe.ledger import MEND, SET_ASIDE, read_content, read_lines


def is_step(entry: dict[str, Any] | None) -> bool:
    """Say whether a line's entry holds what is read of a step."""
    try:
        return (
            entry is not None and {"epoch", "num_samples"} <= entry.keys() and bool(float.fromhex(entry["loss"]).hex())
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return False


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a ledger up to the first line that is damaged; empty where there is no ledger."""
    return [*itertools.takewhile(is_step, read_lines(path))]


def is_record(entry: dict[str, Any] | None) -> bool:
    """Say whether a line's entry holds what is read of recorded values: numbers by name."""
    try:
        return entry is not None and all(isinstance(float(value), float) for value in entry["values"].values())
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def damaged_from(path: Path) -> int | None:
    """Return the number, from 1, of the first whole line that is none of ours; None: there is none, or no ledger."""
    content = read_content(path)
    lines = chain.parse_all(content)
    whole = len(lines) - (not content.endswith(b"\n"))  # the last one may be on its way
    return next((number for number, (_, entry) in enumerate(lines[:whole], start=1) if not is_step(entry)), None)


def changed_line(path: Path, heads: Mapping[int, str]) -> str | None:
    """Say which line is not the one that was written, by the chain values of steps (`heads`); None: none is."""
    known = {step: head for step, head in heads.items() if head}
    found = chain.first_break(chain.parse_all(read_content(path)), known)
    return None if found is None else f"line {found[0]} {found[1]}"


def last_step_in(path: Path) -> int:
    """Return the last step that has a whole line; 0: none."""
    return max((entry["step"] for _, entry in chain.parse_all(read_content(path)) if entry is not None), default=0)


def describe_damage(path: Path, saved: int) -> str | None:
    """Say where a ledger is damaged, what that means and what to do; None: nowhere, as far as one can see.

    Args:
        path: Of the ledger.
        saved: Step of the newest checkpoint; 0: there is none.
    """
    lines = [(line, entry if is_step(entry) else None) for line, entry in chain.parse_all(read_content(path))]
    step, number = 1, 0
    for number, (_, entry) in enumerate(lines, start=1):
        if entry is None and number == len(lines) and step > saved:
            start = f"after the checkpoint of step {saved}" if saved else "from the beginning"
            return (
                f"{path} breaks off within line {number}, as after a power cut: step {step} is missing. The same "
                f"command goes on {start}, and writes it again."
            )
        if entry is None:
            return f"line {number} of {path} is damaged: what it said of step {step} is lost. {MEND}."
        if entry["step"] > step:
            break
        step = max(step, entry["step"] + 1)
    else:
        if step > saved:
            return None
    found = ((re.fullmatch(SET_ASIDE, file.name), file) for file in path.parent.glob("ledger.damaged-*"))
    copies = sorted((int(match[1]), file) for match, file in found if match and int(match[1]) >= step)
    why = f", which was damaged before the resume after step {copies[0][0]}: see {copies[0][1]}" if copies else ""
    return f"{path} has no line of step {step}{why}. {MEND}."


def described_line(path: Path) -> str:
    """Return a sentence that says which line of a ledger is damaged; empty where none is."""
    number = damaged_from(path)
    return (
        "" if number is None else f" Its line {number} is damaged: steps are known up to there. Hint: put back a copy."
    )


def describe_metric_damage(path: Path) -> str | None:
    """Say where a file of recorded values is damaged, what that means and what to do; None: nowhere, or there is none.

    Args:
        path: Of ``metrics.jsonl``.
    """
    lines = chain.parse_all(read_content(path))
    number = next((number for number, (_, entry) in enumerate(lines, start=1) if not is_record(entry)), None)
    if number is None:
        return None
    what = "breaks off within" if number == len(lines) else "is damaged in"
    return (
        f"{path} {what} line {number}: what was recorded there is lost, and curves end before it. "
        "Hint: the same command leaves that line out, and keeps the others."
    )
