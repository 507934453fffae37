"""All ranks of a run on one time line, in the Trace Event Format that Perfetto and chrome://tracing open.

In: a run directory with step phases. Out: a JSON file: a process for each rank, a track for each launch, a slice for
each step and inside it one for each phase. Recorded is how long a rank was in each phase of a step, not when: phases of
one step are drawn one after the other, in the order of a step, though data, forward and backward take turns.

Source of the format: "Trace Event Format", the Chromium project.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.observe.phases import StepPhases
from unisono.report.run_view import check_run, read_run
from unisono.scaling.study import BETWEEN, STEP_PHASES
from unisono.system.files import check_place, write_whole

ORDER = (*STEP_PHASES, *BETWEEN)
_MARK = '"unisono timeline"'
_COLOURS = {"data": "yellow", "forward": "good", "backward": "rail_response", "reduce": "terrible",
            "update": "rail_animation", "checkpoint": "grey", "evaluate": "olive", "other": "white"}  # fmt: skip


def write_timeline(run: Path, out: Path) -> int:
    """Write a run's time line and return the number of its events.

    Raises:
        ConfigError: There is no run or it has no step phases; the file cannot be written, or holds something else.
    """
    check_place(out, (_MARK,))
    check_run(run)
    records = read_run(run).phases
    if not records:
        raise ConfigError(f"{run} has no step phases: it was trained by an earlier version. Hint: train again.")
    events = list(events_of(records))
    plain = {"otherData": {"kind": "unisono timeline", "run": run.resolve().name}, "displayTimeUnit": "ms",
             "traceEvents": events}  # fmt: skip
    text = json.dumps(plain, separators=(",", ":"))
    write_whole(out, text.replace('"kind":"unisono timeline"', f'"kind": {_MARK}', 1).encode())
    return len(events)


def events_of(records: Sequence[StepPhases]) -> Iterator[dict[str, Any]]:
    """Yield trace events: names of processes and tracks, then slices; times in microseconds from the first step."""
    origin = min(record.began_ns for record in records)
    for rank in sorted({record.rank for record in records}):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for rank, launch in sorted({(record.rank, record.launch) for record in records}):
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": launch, "args": {"name": f"launch {launch}"}}
    for record in records:
        at_ns = record.began_ns - origin
        place = {"ph": "X", "pid": record.rank, "tid": record.launch}
        lasted = sum(record.ns.values()) / 1e3
        args = {"step": record.step, "ranks": record.world_size}
        yield {**place, "name": f"step {record.step}", "cat": "step", "ts": at_ns / 1e3, "dur": lasted, "args": args}
        for phase in (*ORDER, *(name for name in record.ns if name not in ORDER)):
            spent = record.ns.get(phase, 0)
            if spent:
                colour = {"cname": _COLOURS[phase]} if phase in _COLOURS else {}
                yield {**place, "name": phase, "cat": "phase", "ts": at_ns / 1e3, "dur": spent / 1e3, **colour}
                at_ns += spent
