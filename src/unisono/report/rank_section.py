"""Where the time of a run went: rank by rank, which of them the others waited for, and over the whole run."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from unisono.observe.phases import StepPhases
from unisono.report.charts import Span, span_chart
from unisono.report.content import Chart, Table, bar_view
from unisono.report.run_view import Launch, RunView, by_rank, own_seconds
from unisono.scaling.study import BETWEEN
from unisono.system.words import counted, spell_seconds

_MOST_RANKS = 32
_MOST_ROWS = 60
_COLOURS = {"interrupted": "bad", "checkpoint": "c6", "evaluate": "c7"}
"""Of spans of time: those that no other chart has for something else."""
_ADVICE = {
    "reduce": "In it the ranks exchange gradients, or wait for the slowest of them: see Stragglers.",
    "other": "That is code outside of steps, such as the loop's own body, or waiting for it.",
    "data": "The ranks wait for samples: num_workers= fetches them ahead.",
}
"""What the phase that takes the largest part of a step means."""


def phases_by_rank(run: RunView) -> Iterator[Chart]:
    """Yield a chart of the phases of each rank's step, where there are records of them."""
    if not run.launches:
        return
    parts = by_rank(run.last_world())
    shown = sorted(parts, key=lambda rank: -sum(parts[rank].values()))[:_MOST_RANKS]
    bars = {f"rank {rank}": parts[rank] for rank in sorted(shown)}
    if not bars:
        return
    note = f"the {_MOST_RANKS} slowest of {len(parts)} ranks" if len(parts) > len(bars) else ""
    whole = {rank: sum(found.values()) for rank, found in parts.items()}
    top = max(next(iter(parts.values())), key=lambda phase: sum(found[phase] for found in parts.values()))
    share = sum(found[top] for found in parts.values()) / (sum(whole.values()) or 1.0)
    finding = f"{top.capitalize()} takes the largest part of a step: {share:.0%}. {_ADVICE.get(top, '')}".rstrip()
    yield bar_view("Where a step goes, rank by rank", bars, "rank", spell_seconds, note, finding)


def stragglers(run: RunView) -> Iterator[Table]:
    """Yield a table of who works longest, where several ranks did."""
    steps = [records for records in run.last_world() if len(records) > 1] if run.launches else []
    if not steps:
        return
    mine: dict[int, list[StepPhases]] = {}
    for record in (record for records in steps for record in records):
        mine.setdefault(record.rank, []).append(record)
    own = {rank: [*map(own_seconds, found)] for rank, found in mine.items()}
    slowest = [max(records, key=own_seconds).rank for records in steps]
    rows = [
        [
            f"rank {rank}{_stay(mine[rank], run.launches[-1])}", spell_seconds(statistics.median(own[rank])),
            spell_seconds(max(own[rank])), f"{slowest.count(rank) / len(own[rank]):.0%}",
            spell_seconds(statistics.median(each.ns.get("reduce", 0) / 1e9 for each in mine[rank])),
        ]
        for rank in sorted(mine, key=lambda rank: -statistics.median(own[rank]))[:_MOST_RANKS]
    ]  # fmt: skip
    yield Table(
        title="Stragglers: own work of a step for one replica (data, forward, backward), then exchange and waiting",
        head=["rank", "median", "longest", "slowest in", "then waits"], rows=rows,
        numeric=frozenset({1, 2, 3, 4}),
    )  # fmt: skip


def _stay(mine: Sequence[StepPhases], launch: Launch) -> str:
    """Return since which step a worker was there, and until which, where that is not the whole of the last launch."""
    steps = [record.step for record in mine if record.launch == launch.number]
    if not steps:
        return ", not in the last launch"
    came = f" from step {min(steps)}" if min(steps) > launch.first_step else ""
    went = f" to about step {max(steps)}" if max(steps) < launch.last_step else ""  # its last second is not written
    return f",{came}{went}" if came or went else ""


def timeline(run: RunView) -> Iterator[Chart]:
    """Yield a chart of launches, interruptions, checkpoints and evaluations over time, where a step is recorded."""
    if not run.launches:
        return
    origin = run.launches[0].began_s
    spans = []
    for launch, after in itertools.zip_longest(run.launches, run.launches[1:]):
        last_step = max(launch.last_step, after.reached if after else 0)  # a killed rank's last second is missing
        text = f"launch {launch.number}: steps {launch.first_step} to {last_step}, {launch.world_size} workers"
        spans.append(Span(row="training", began=launch.began_s - origin, ended=launch.ended_s - origin, kind="training",
                          text=text, label=f"steps {launch.first_step} to {last_step}"))  # fmt: skip
    for before, after in zip(run.launches, run.launches[1:], strict=False):
        if after.began_s > before.ended_s:
            text = f"{spell_seconds(after.began_s - before.ended_s)} until step {after.first_step}"
            spans.append(Span(row="interrupted", began=before.ended_s - origin, ended=after.began_s - origin,
                              kind="interrupted", text=text))  # fmt: skip
    stretches = run.workers()
    for launch, size, steps in stretches if len(stretches) > len(run.launches) else ():
        began, last = steps[0][0].began_ns / 1e9 - origin, steps[-1][0]
        ended = (last.began_ns + sum(last.ns.values())) / 1e9 - origin
        text = f"{counted(size, 'worker')}: steps {steps[0][0].step} to {last.step} of launch {launch.number}"
        spans.append(
            Span(row="workers", began=began, ended=ended, kind="workers", text=text, label=counted(size, "worker"))
        )
    for kind in BETWEEN:
        longest = [record for record in run.led() if record.ns.get(kind, 0) > 1_000_000]
        longest = sorted(longest, key=lambda record: -record.ns[kind])[:_MOST_ROWS]
        for record in sorted(longest, key=lambda record: record.began_ns):
            ended = (record.began_ns + sum(record.ns.values())) / 1e9 - origin
            seconds = record.ns[kind] / 1e9
            text = f"{kind} after step {record.step}: {spell_seconds(seconds)}"
            spans.append(Span(row=kind, began=ended - seconds, ended=ended, kind=kind, text=text))
    rows = [[span.kind, spell_seconds(span.began), spell_seconds(span.ended - span.began), span.text]
            for span in spans[:_MOST_ROWS]]  # fmt: skip
    table = Table(
        title="The run in time", head=["what", "began", "lasted", "more"], rows=rows, numeric=frozenset({1, 2})
    )
    drawn = span_chart(
        "Launches, interruptions, checkpoints and evaluations over time",
        spans,
        spell=spell_seconds,
        colours=_COLOURS,
    )
    breaks = [span for span in spans if span.kind == "interrupted"]
    lost = sum(span.ended - span.began for span in breaks)
    end = "" if run.result.get("finished", bool(run.result)) else " up to its last step; the run is not finished"
    finding = f"{counted(len(breaks), 'interruption')}, {spell_seconds(lost)} in all{end}."
    finding = finding if breaks else f"No interruption{end}."
    if changes := run.changes().strip(" ()"):
        finding = f"{finding} Of the workers, {changes}."
    yield Chart(
        title="The run in time", drawing=drawn, values=table, note="Since the first step, by the hosts' clocks.",
        finding=finding,
    )  # fmt: skip


def checkpoints(run: RunView) -> Iterator[Table]:
    """Yield a table of the training time that checkpoints took."""
    steps = run.final_phases()
    rows = [
        [str(step), spell_seconds(max(r.ns.get("checkpoint", 0) for r in records) / 1e9),
         datetime.fromtimestamp(records[0].began_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")]
        for step, records in steps.items() if max(r.ns.get("checkpoint", 0) for r in records) > 1_000_000
    ]  # fmt: skip
    if rows:
        shown = rows if len(rows) <= _MOST_ROWS else rows[-_MOST_ROWS:]
        title = f"Checkpoints: training time they took ({len(rows)} in all)"
        yield Table(title=title, head=["after step", "took", "at (UTC)"], rows=shown, numeric=frozenset({0, 1}))
