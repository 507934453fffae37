"""What the page of a watched run says above its report, as plain values: words, and drawings as SVG (pure)."""

import math
from collections.abc import Sequence
from typing import Any

from unisono.report.charts import Series, line_chart, stacked_bars
from unisono.report.content import band_of, log_ends, loss_label, mean_of, sample
from unisono.report.run_section import told_value
from unisono.report.watch.state import WatchedRun
from unisono.report.watch.told import ended, events, held_up, progress, room, row, setup, spelt, values, verdict
from unisono.system.words import counted, spell_count, spell_seconds

_TONES = {"bold red": "bad", "bold green": "good", "bold yellow": "note"}
_POINTS = 80
_MOST_RANKS, _MOST_METRICS = 16, 2
_MOST_RUNS = 4  # of more, each is a line of the table alone


def rows_of(runs: Sequence[WatchedRun]) -> list[list[str]]:
    """Return several runs as a table, its head first; nothing of one."""
    rows = [row(run) for run in runs]
    names = [*dict.fromkeys(name for each in rows for name in each)]
    return [names, *([each.get(name, "-") for name in names] for each in rows)] if len(runs) > 1 else []


def head_of(run: WatchedRun, num_runs: int = 1) -> dict[str, Any]:
    """Return what the page says of a run, above its report."""
    said, style = verdict(run)
    share = min(1.0, run.step / run.num_steps) if run.num_steps else None
    return {
        "name": run.name, "state": run.state, "verdict": said, "tone": _TONES.get(style, ""), "share": share,
        "facts": [*progress(run), *values(run)], "about": [setup(run), *ended(run), *room(run)],
        "notes": [*held_up(run), *events(run)], "drawings": _drawings(run) if num_runs <= _MOST_RUNS else [],
    }  # fmt: skip


def _drawings(run: WatchedRun) -> list[dict[str, str]]:
    """Return the loss, each metric's curve, and where each rank's time goes, as far as there is something to draw."""
    found = []
    if len(run.losses) > 1:
        means, width = mean_of(run.losses)
        lines = [Series(name=f"mean of {width} steps" if width > 1 else "loss", points=sample(means, _POINTS))]
        lines += [band_of("each step", run.losses, _POINTS, 0)] if width > 1 else []
        ends = log_ends(run.losses)
        drawn = line_chart(
            "Loss", lines, x_label="step", spell_x=spell_count, spell_y=told_value, from_zero=ends is None, log_y=ends,
            y_label=loss_label(run.losses),
        )  # fmt: skip
        found.append({"title": "Loss", "svg": drawn.svg()})
    for name, points in [each for each in run.history.items() if not each[0].startswith("lr")][:_MOST_METRICS]:
        finite = [point for point in points if math.isfinite(point[1])]
        if len(finite) > 1:
            line = Series(name=name, points=sample(finite, _POINTS))
            drawn = line_chart(name, [line], x_label="step", spell_x=spell_count, spell_y=told_value, from_zero=False)
            found.append({"title": f"{name}: {spelt(finite[-1][1])}", "svg": drawn.svg()})
    lost, slow = run.lost(), run.slowest()
    seen = {phase for rank in run.ranks.values() for phase, seconds in rank.phases().items() if seconds}
    bars = {
        f"rank {number}{' gone' * (number in lost)}{' slow' * (slow is not None and number == slow.rank)}": {
            phase: seconds for phase, seconds in rank.phases().items() if phase in seen
        }
        for number, rank in sorted(run.ranks.items())[:_MOST_RANKS] if rank.steps
    }  # fmt: skip
    if bars:
        more = len(run.ranks) - _MOST_RANKS
        title = "Where a step goes, rank by rank" + (f" ({counted(more, 'more rank')})" if more > 0 else "")
        found.append({"title": title, "svg": stacked_bars(title, bars, spell=spell_seconds).svg()})
    return found
