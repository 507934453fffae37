"""How reductions through shared memory are cut: chosen from a short measurement, kept per host, never changing a bit.

The order of every sum is the tree's whatever the plan says; a plan only says who adds which elements, and in how large
pieces. Pure but for `load` and `save`.
"""

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from unisono.system.files import replace_file

PLAN_VERSION = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How to cut a reduction."""

    whole_bytes: int  #: Up to this size every rank adds up everything (one meeting less); above, each rank its share.
    piece_bytes: int  #: Largest piece of a buffer between two meetings.


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanTiming:
    """One measurement: a reduction of `num_bytes` under a plan took `seconds`."""

    num_bytes: int
    plan: Plan
    seconds: float


def default_plan(world_size: int) -> Plan:
    """Return the plan for a host that has not been measured: between two ranks, adding everything costs no more."""
    return Plan(whole_bytes=1 << 40 if world_size == 2 else 32 << 10, piece_bytes=2 << 20)


def choose(timings: Iterable[PlanTiming]) -> Plan:
    """Return the best plan: the piece that is fastest for the largest size, and up to where adding everything pays.

    Args:
        timings: For each size, plans whose `whole_bytes` is either 0 or at least that size.
    """
    rows = list(timings)
    largest = max(row.num_bytes for row in rows)
    piece = min((row for row in rows if row.num_bytes == largest), key=lambda row: row.seconds).plan.piece_bytes
    whole = 0
    for size in sorted({row.num_bytes for row in rows}):
        alike = [row for row in rows if row.num_bytes == size]
        shared = min(row.seconds for row in alike if row.plan.whole_bytes < size)
        if min(row.seconds for row in alike if row.plan.whole_bytes >= size) > shared:
            break
        whole = size
    return Plan(whole_bytes=1 << 40 if whole == largest else whole, piece_bytes=piece)


def plan_file(cache: Path, world_size: int) -> Path:
    """Return where the plan of this host and number of ranks is kept."""
    host = f"{PLAN_VERSION} {platform.machine()} {platform.processor()} {platform.node()} {os.cpu_count()} {world_size}"
    return cache / "collectives" / f"plan-{hashlib.sha256(host.encode()).hexdigest()[:16]}.json"


def load(file: Path) -> Plan | None:
    """Return a plan that `save` has written, None if there is none that can be read."""
    try:
        found = json.loads(file.read_text())
        plan = Plan(whole_bytes=int(found["whole_bytes"]), piece_bytes=int(found["piece_bytes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it only costs a measurement
    return plan if plan.whole_bytes >= 0 and plan.piece_bytes >= 1 << 12 else None


def save(file: Path, plan: Plan) -> None:
    """Keep a plan; where the cache cannot be written, the next run measures again."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, (json.dumps(asdict(plan)) + "\n").encode())
