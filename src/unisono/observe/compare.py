"""Compare what two runs have left: field by field, step by step (reads files, imports no torch)."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from unisono.observe.damage import changed_line
from unisono.observe.ledger import read_lines

SAMPLES = "sample_hashes"
"""Of a score: hashes of some samples, by what they are of; who knows fewer differs in none of the others."""
MODULES = "modules"
"""Of a score: what each module of the model is, by its name; a score of version 0.1 has none, and differs in none."""
ALLOWED = " (drift allowed)"
"""Behind the name of what is not compared with what was recorded, since drift is allowed; ranks compare it."""


def diff(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return one line per differing field, with its path, old and new value; of `SAMPLES` what both know counts.

    `MODULES` count where both have them; those that have changed alike have one line.
    """
    lines: list[str] = []
    for key in [*old, *(key for key in new if key not in old)]:
        left, right = old.get(key), new.get(key)
        if key == SAMPLES:
            both = (left or {}).keys() & (right or {}).keys()
            left, right = ({name: each[name] for name in sorted(both)} for each in (left or {}, right or {}))
        if not prefix and key in (MODULES, MODULES + ALLOWED):
            lines += [] if left is None or right is None else _of_modules(left, right)
        elif isinstance(left, Mapping) and isinstance(right, Mapping):
            lines += diff(left, right, f"{prefix}{key}.")
        elif left != right and _are_records(left) and _are_records(right) and len(left) == len(right):
            for place, (one, other) in enumerate(zip(left, right, strict=True)):
                lines += diff(one, other, f"{prefix}{key}[{place}].")
        elif left != right:
            lines.append(f"{prefix}{key}: {left!r} -> {right!r}")
    return lines


def _of_modules(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    changed: dict[tuple[str, str], list[str]] = {}
    for name in [*old, *(name for name in new if name not in old)]:
        pair = old.get(name, "none"), new.get(name, "none")
        if pair[0] != pair[1]:
            changed.setdefault(pair, []).append(name or "(the model itself)")
    more = {pair: f" and {len(names) - 1} more" * (len(names) > 1) for pair, names in changed.items()}
    return [f"{MODULES}.{names[0]}{more[left, right]}: {left} -> {right}" for (left, right), names in changed.items()]


def said_now(score: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded score as it is written now; in version 0.2 strategies and recipes told the precision."""
    found, settings, strategy = dict(score), score.get("settings"), score.get("strategy")
    if isinstance(settings, Mapping) and "recipe" in settings and settings.get("bf16") is True:
        kept = {name: value for name, value in settings.items() if name != "bf16"}
        found |= {"precision": "bf16", "settings": kept}
    if isinstance(strategy, Mapping) and strategy.get("amp", "none") != "none":
        found |= {"precision": strategy["amp"], "strategy": {**strategy, "amp": "none"}}
    return found


def _are_records(value: Any) -> TypeGuard[list[Mapping[str, Any]]]:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


def changed_ledger(run: Path, result: Mapping[str, Any]) -> str | None:
    """Return which line of a run's ledger is not the one that was written, by its `result`, in words; None: none is."""
    step, head = result.get("steps"), result.get("ledger_head")
    heads = {step: head} if isinstance(step, int) and isinstance(head, str) else {}
    found = changed_line(run / "ledger.jsonl", heads)
    return None if found is None else f"{run / 'ledger.jsonl'} has been changed: {found}"


def first_difference(left: Path, right: Path) -> tuple[int, list[str]] | None:
    """Return the first step at which two ledgers part, with the names of the fields that differ; None if they agree.

    A ledger that ends earlier parts from the other at its first missing step (``["length"]``).
    """
    for ours, theirs in itertools.zip_longest(read_lines(left), read_lines(right)):
        if ours is None or theirs is None:
            return (ours or theirs)["step"], ["length"]
        if ours != theirs:
            return ours["step"], [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return None
