"""How long collectives take on this machine, over shared memory and gloo; must not import torch."""

import inspect
import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from unisono.collectives.schedules import SCHEDULES, Schedule, bytes_sent
from unisono.experiments.trials import Tell, on_workers, silent
from unisono.launchers.api import describe_function
from unisono.launchers.local import run_local
from unisono.launchers.scratch import scratch_directory
from unisono.launchers.spec import LaunchSpec
from unisono.system.machine import usable_cores

COLLECTIVES = (
    "all_reduce", "reduce", "reduce_scatter", "broadcast", "scatter", "gather", "all_gather", "all_to_all", "send_recv",
    "tree_all_reduce", "barrier",
)  # fmt: skip
"""Everything that can be measured."""
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)


def measure_collectives(
    ranks: Sequence[int] = (2,), sizes: Sequence[int] = SIZES, names: Sequence[str] = COLLECTIVES, *, repeat: int = 15,
    tell: Tell = silent,
) -> dict[str, Any]:  # fmt: skip
    """Time collectives over everything that carries them, beside a plain copy of memory; every result is checked.

    Returns:
        What ``unisono bench collectives --json`` prints: cores, torch's version, the plan by which reductions are cut
        by number of ranks, and rows as `unisono.experiments.measure.Timing` describes them.
    """
    rows: list[dict[str, Any]] = []
    plans: dict[int, dict[str, int] | None] = {}
    for count in ranks:
        tell(f"measuring {on_workers(count, noun='rank')} ...")
        found = time_collectives(count, sizes, names, repeat)
        rows += found["rows"]
        plans[count] = found["plan"]
    return {"cores": usable_cores(), "torch": metadata.version("torch"), "repeat": repeat, "plans": plans, "rows": rows}


def time_collectives(ranks: int, sizes: Sequence[int], names: Sequence[str], repeat: int) -> dict[str, Any]:
    """Return the rows and the plan of one number of ranks; see `measure_collectives`."""
    from unisono.experiments.measure import measure  # loads torch

    with scratch_directory("bench") as scratch:
        out = Path(scratch) / "rows.json"
        target = describe_function(measure, (list(sizes), repeat, list(names), str(out)))
        run_local(LaunchSpec(target=target, workers=ranks, threads=1, output="quiet"))
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def schedule_as_plain(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as plain values; ``sent`` is in chunks, for each rank."""
    return {
        "name": schedule.name, "ranks": schedule.world_size, "chunks": schedule.num_chunks,
        "holds": [list(held) for held in schedule.holds],
        "rounds": [[asdict(move) for move in moves] for moves in schedule.rounds],
        "sent": bytes_sent(schedule, schedule.num_chunks),
    }  # fmt: skip


def describe_schedule(schedule: Schedule) -> list[str]:
    """Return a schedule in words: what it is, its moves round by round, and what each rank sends."""
    text = (inspect.getdoc(SCHEDULES[schedule.name]) or "").removeprefix("Return ")
    text = re.sub("[`*]{1,2}(?=\\S)|(?<=\\S)[`*]{1,2}", "", text[:1].upper() + text[1:])
    lines = [line for paragraph in text.split("\n\n") for line in [*textwrap.wrap(paragraph, 80), ""]]
    for turn, moves in enumerate(schedule.rounds, start=1):
        lines.append(f"round {turn}")
        for source in sorted({move.source for move in moves}):
            sent = [f"{m.action} chunk {m.chunk} to rank {m.target}" for m in moves if m.source == source]
            line = f"rank {source}: {', '.join(sent)}"
            lines += textwrap.wrap(line, 78, initial_indent="  ", subsequent_indent="    ")
    sent_by = [f"{count / schedule.num_chunks:.3g} S" for count in bytes_sent(schedule, schedule.num_chunks)]
    lines += textwrap.wrap(f"each rank sends, of a buffer of S bytes: {', '.join(sent_by)}", 80)
    return lines
