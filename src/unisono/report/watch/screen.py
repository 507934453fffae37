"""What `unisono watch` draws in a terminal: plain values to text, by rich."""

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from unisono.report.charts import thin
from unisono.report.watch.state import RankState, WatchedRun
from unisono.system.words import counted, spell_bytes, spell_count, spell_seconds

if TYPE_CHECKING:
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_COLOURS = {
    "data": "yellow", "forward": "cyan", "backward": "blue", "reduce": "magenta", "update": "green",
    "checkpoint": "red", "evaluate": "white", "other": "bright_black",
}  # fmt: skip
_TONES = {"finished": "green", "training": "cyan", "starting": "cyan"}
_BAR = 24
_MOST_RANKS = 16


def curve(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Return a curve as lines of text, the newest point at the right; on a logarithmic scale where all are above zero.

    Args:
        points: (x, y); what is not finite is left out.
        width: Columns, of which ten are for the numbers at the left.
        height: Lines.
    """
    columns = max(8, width - 10)
    values = [y for _, y in thin(points, columns)]
    if not values:
        return []
    scale = math.log10 if min(values) > 0 else float
    heights = [scale(value) for value in values]
    low, high = min(heights), max(heights)
    eighths = [round((value - low) / ((high - low) or 1.0) * (8 * height - 1)) + 1 for value in heights]
    lines = []
    for row in reversed(range(height)):
        label = max(values) if row == height - 1 else min(values) if row == 0 else None
        cells = "".join(_EIGHTHS[max(0, min(8, eighth - 8 * row))] for eighth in eighths)
        lines.append(f"{'' if label is None else f'{label:.4g}':>9} {cells}")
    return lines


def draw(runs: Sequence[WatchedRun], width: int) -> "Group":
    """Return the screen."""
    from rich.console import Group

    return Group(*(_panel(run, width - 4, 5 if len(runs) == 1 else 3) for run in runs))


def _panel(run: WatchedRun, width: int, height: int) -> "Panel":
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    facts = run.facts()
    state = facts["state"]
    parts: list[Text | Table] = [Text(line) for line in _where(run, width)]
    if run.losses:
        parts += [Text("loss of each step", style="dim"), *(Text(line) for line in curve(run.losses, width, height))]
    if run.ranks:
        parts.append(_ranks(run))
    parts += [Text(line, style="yellow") for line in _events(run)]
    used = facts["leader_memory_bytes"]
    told = [f"{spell_bytes(facts['disk_free_bytes'])} free on the disk"]
    told += [f"{spell_bytes(used)} of memory in the leader"] if used else []
    parts.append(Text("; ".join(told), style="dim"))
    title = Text.assemble((run.name, "bold"), " ", (state, _TONES.get(state, "red")))
    return Panel(Group(*parts), title=title, title_align="left")


def headline(run: WatchedRun) -> str:
    """Return one line: the run, its state, how far and how fast it is, and its last values."""
    return f"{run.name} {run.state}: {_progress(run)} · {_values(run)}".rstrip(" ·")


def _progress(run: WatchedRun) -> str:
    facts = run.facts()
    told = f"step {run.step:,}" + (f" of {run.num_steps:,}" if run.num_steps else "") + f", epoch {facts['epoch']}"
    if facts["samples_per_s"]:
        told += f", {spell_count(round(facts['samples_per_s']))} samples/s"
    if facts["eta_s"] is not None:
        told += f", {timedelta(seconds=round(facts['eta_s']))} left"
    if facts["state"] in {"silent", "ended"} and math.isfinite(run.silent_s):
        told += f"; the last step was {spell_seconds(run.silent_s)} ago"
    return told


def _values(run: WatchedRun) -> str:
    listed = ({"loss": run.losses[-1][1]} if run.losses else {}) | run.metrics
    return "  ".join(f"{key} {value:.4f}" for key, value in listed.items())


def _where(run: WatchedRun, width: int) -> Iterator[str]:
    """Yield how far it is, and how well."""
    name = (run.score.get("strategy") or {}).get("name", "exact")
    workers = counted(run.facts()["workers"], "worker")
    yield f"{name}, {run.score.get('replicas', '?')} replicas on {workers}"
    yield _progress(run)
    if run.num_steps:
        share = min(1.0, run.step / run.num_steps)
        full = round(share * (width - 7))
        yield "█" * full + "░" * (width - 7 - full) + f" {share:5.0%}"
    if values := _values(run):
        yield values


def _ranks(run: WatchedRun) -> "Table":
    """Return where each rank's time goes, of its last steps."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("rank", "step takes", "where its time goes", ""):
        table.add_column(name, header_style="dim", justify="left" if name.startswith("where") else "right")
    lost, slowest = run.lost(), run.slowest()
    for number, rank in sorted(run.ranks.items())[:_MOST_RANKS]:
        phases = rank.phases()
        note = "gone" if number in lost else "slow" if number == slowest else ""
        table.add_row(
            str(number), spell_seconds(sum(phases.values())) if phases else "-", _bar(rank), Text(note, style="yellow")
        )
    if len(run.ranks) > _MOST_RANKS:
        table.add_row("...", "", Text(f"{len(run.ranks) - _MOST_RANKS} more"), "")
    words = Text("  ".join(_COLOURS), style="dim")
    for phase, colour in _COLOURS.items():
        words.highlight_words([phase], style=f"not dim {colour}")
    table.add_row("", "", words, "")
    return table


def _bar(rank: RankState) -> "Text":
    """Return a rank's phases as coloured blocks; where there is no colour, each as its letter."""
    from rich.text import Text

    phases = rank.phases()
    whole = sum(phases.values()) or 1.0
    out = Text()
    done, drawn = 0.0, 0
    for phase, seconds in phases.items():
        done += seconds
        upto = round(done / whole * _BAR)
        out.append(phase[0].upper() * (upto - drawn), style=f"{_COLOURS.get(phase, 'white')} reverse")
        drawn = upto
    return out


def _events(run: WatchedRun) -> Iterator[str]:
    """Yield what has disturbed the run."""
    for number, world_size, first, before in run.launches[1:]:
        if first:
            again = f", {counted(before - first + 1, 'step')} computed again" if before >= first else ""
            yield f"launch {number}: {counted(world_size, 'worker')} from step {first}{again}"
    for number in run.lost():
        yield f"rank {number} is gone; the last step it has written is {run.ranks[number].step}"
    for number in run.joined():
        yield f"rank {number} has joined in step {run.ranks[number].first}"
    if run.num_damaged:
        yield f"{counted(run.num_damaged, 'line')} that no run writes"
