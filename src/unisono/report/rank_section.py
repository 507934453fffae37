"""Where the steps of a run's ranks went, and which of them the others waited for."""

import statistics
from collections.abc import Iterator, Sequence

from unisono.observe.phases import StepPhases
from unisono.report.content import Chart, Table, bar_view
from unisono.report.run_view import Launch, RunView, by_rank, own_seconds
from unisono.system.words import spell_seconds

_MOST_RANKS = 32
_ADVICE = {
    "reduce": "In it the ranks exchange gradients, or wait for the slowest of them: see Stragglers.",
    "other": "That is code outside of steps, such as the loop's own body, or waiting for it.",
    "data": "The ranks wait for samples: num_workers= fetches them ahead.",
}
"""What a phase that takes most of the time means."""


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
    finding = f"{top.capitalize()} takes most of a step's time: {share:.0%}. {_ADVICE.get(top, '')}".rstrip()
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
        title="Stragglers: own work of a step (data, forward, backward), then exchange and waiting",
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
