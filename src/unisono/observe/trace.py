"""Traces of all ranks on one time line: what each rank's profiler has written, as one file for Perfetto or Chrome.

A rank's part is torch.profiler's own file: times in microseconds since its ``baseTimeNanoseconds``, which counts from
1970 by the clock of the rank's host. All parts are moved to one origin, the earliest moment in any of them. In the
joined file a rank is a process (``pid``), and its threads, GPU streams and steps are the threads of it.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

from unisono.system.directory import Directory

Event = dict[str, Any]

_STEPS = 0  # the thread of the steps; others count from 1


def join_traces(parts: Sequence[Path], steps: Sequence[Sequence[Event]], path: Path) -> None:
    """Write the parts of all ranks as one trace.

    Args:
        parts: Of each rank, in rank order.
        steps: Of each rank, what is to stand above its threads: ``name``, ``began_ns`` and ``ended_ns`` (since 1970,
            by the clock of its host) and ``args``.
        path: Overwritten; all of it is there or nothing is.

    Raises:
        OSError: A part cannot be read, or the trace cannot be written.
        ValueError: A part is no trace of torch.profiler.
    """
    read = [_Part(rank, part) for rank, part in enumerate(parts)]
    moments = [moment for part in read for moment in part.moments()]
    moments += [int(step["began_ns"]) for each in steps for step in each]
    origin = min(moments, default=0)
    events = [event for part in read for event in part.on(origin, len(parts))]
    for rank, each in enumerate(steps):
        events.append(_named("process_name", rank, _STEPS, name=f"rank {rank}/{len(parts)}"))
        events.append(_named("process_sort_index", rank, _STEPS, sort_index=rank))
        events.append(_named("thread_name", rank, _STEPS, name="steps"))
        events += [
            {
                "ph": "X", "cat": "step", "name": step["name"], "pid": rank, "tid": _STEPS, "args": step["args"],
                "ts": (step["began_ns"] - origin) / 1000, "dur": (step["ended_ns"] - step["began_ns"]) / 1000,
            }
            for step in each
        ]  # fmt: skip
    # Whole nanoseconds of the origin stand beside the times, because a double could not hold their sum.
    whole = {"traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": origin}
    with Directory.open(path.parent) as home:
        home.replace(path.name, json.dumps(whole).encode())


@final
class _Part:
    """What one rank's profiler has written."""

    def __init__(self, rank: int, path: Path) -> None:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or "traceEvents" not in found or "baseTimeNanoseconds" not in found:
            raise ValueError(f"expected a trace of torch.profiler in {path}, got something else")
        self._rank, self._base = rank, int(found["baseTimeNanoseconds"])
        self._events: list[Event] = found["traceEvents"]
        self._threads: dict[tuple[str, str], int] = {}

    def moments(self) -> Iterator[int]:
        """Yield when things happened, in nanoseconds since 1970."""
        return (self._moment(event) for event in self._events if _is_timed(event))

    def on(self, origin: int, ranks: int) -> Iterator[Event]:
        """Yield the events with times counted from `origin`, and with the rank as their process."""
        for event in self._events:
            if event.get("ph") == "M" and event.get("name") != "thread_name":
                continue
            thread = (str(event.get("pid")), str(event.get("tid")))
            is_new = thread not in self._threads
            moved = {**event, "pid": self._rank, "tid": self._threads.setdefault(thread, len(self._threads) + 1)}
            if is_new and event.get("ph") != "M":
                yield _named("thread_name", self._rank, moved["tid"], name=" ".join(thread).strip() or "profiler")
            if "ts" in event:
                moved["ts"] = (self._moment(event) - origin) / 1000
            if "id" in event:  # arrows: numbers that are one rank's own
                same = event["id"]
                moved["id"] = same * ranks + self._rank if isinstance(same, int) else f"{self._rank}:{same}"
            yield moved

    def _moment(self, event: Event) -> int:
        # Whole nanoseconds: a double of microseconds since long ago holds fractions only roughly.
        return self._base + round(float(event["ts"]) * 1000)


def _is_timed(event: Event) -> bool:
    return "ts" in event and event.get("ph") != "M"


def _named(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}
