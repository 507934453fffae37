"""The sweep: which case a number is, what became of it, and a log that a later sweep goes on from."""

import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from adversary import bits, command_lines, damages, habits, kills, measures, samplers
from adversary.found import Found, Missed

KINDS: dict[str, tuple[Callable[..., str], int]] = {
    "combination": (bits.combination, 200),
    "interruption": (bits.interruption, 150),
    "sampler": (samplers.sampler, 120),
    "distributed_sampler": (samplers.distributed_sampler, 60),
    "metric": (measures.metric, 160),
    "damage": (damages.damage, 300),
    "habit": (habits.habit, 100),
    "command_line": (command_lines.command_line, 200),
    "kill": (kills.kill, 10),
}
"""Each kind's function and its weight among the drawn ones."""
QUICK = tuple(kind for kind in KINDS if kind != "kill")


def kind_of(seed: int, number: int, kinds: Iterable[str] = KINDS) -> tuple[str, random.Random]:
    """Return what case `number` of a sweep is, and the generator that it draws from; the same for ever."""
    chance = random.Random(f"{seed}/{number}")
    names = [*kinds]
    return chance.choices(names, [KINDS[name][1] for name in names])[0], chance


def try_case(seed: int, number: int, kinds: Iterable[str] = KINDS) -> dict[str, Any]:
    """Try one case; return what became of it: ``right``, ``found`` or ``missed``, in words."""
    kind, chance = kind_of(seed, number, kinds)
    began = time.monotonic()
    try:
        outcome, words = "right", KINDS[kind][0](chance)
    except Missed as missed:
        outcome, words = "missed", str(missed)
    except Found as found:
        outcome, words = "found", str(found)
    except Exception:  # noqa: BLE001 - whatever it is, it is found
        outcome, words = "found", traceback.format_exc()
    return {
        "seed": seed, "number": number, "kind": kind, "outcome": outcome, "seconds": round(time.monotonic() - began, 3),
        "words": words,
    }  # fmt: skip


def sweep(seed: int, numbers: range, log: Path | None, kinds: Iterable[str] = KINDS) -> Iterator[dict[str, Any]]:
    """Try cases that the log does not hold yet, yield each and write it down."""
    done = set()
    if log is not None and log.exists():
        done = {(line["seed"], line["number"]) for line in map(json.loads, log.read_text().splitlines())}
    for number in numbers:
        if (seed, number) in done:
            continue
        tried = try_case(seed, number, kinds)
        if log is not None:
            with log.open("a") as file:
                file.write(json.dumps(tried) + "\n")
        yield tried


def summary(log: Path) -> str:
    """Return a table of what became of all cases of a log."""
    lines = [*map(json.loads, log.read_text().splitlines())]
    counts = Counter((line["kind"], line["outcome"]) for line in lines)
    seconds = Counter[str]()
    for line in lines:
        seconds[line["kind"]] += line["seconds"]
    rows = [f"{'kind':20} {'right':>7} {'found':>6} {'missed':>7} {'seconds':>8}"]
    for kind in KINDS:
        row = [counts[kind, outcome] for outcome in ("right", "found", "missed")]
        rows.append(f"{kind:20} {row[0]:7} {row[1]:6} {row[2]:7} {seconds[kind]:8.0f}")
    return "\n".join(rows)
