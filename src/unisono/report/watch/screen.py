"""What `unisono watch` draws in a terminal: plain values to text, by rich."""

import math
import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from unisono.report.run_view import newest_checkpoint
from unisono.report.watch.state import RankState, WatchedRun, plain
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
_MOST_SCORES = 4


def curve(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Return a curve as lines of text, the newest point at the right; on a logarithmic scale where all are above zero.

    Where there are more points than columns, a column shows the mean of its stretch.

    Args:
        points: (x, y); what is not finite is left out.
        width: Columns, of which ten are for the numbers at the left.
        height: Lines.
    """
    columns = max(8, width - 10)
    values = _means([y for _, y in points if math.isfinite(y)], columns)
    if not values:
        return []
    eighths = _eighths(values, height, is_log=min(values) > 0)
    lines = []
    for row in reversed(range(height)):
        label = max(values) if row == height - 1 else min(values) if row == 0 else None
        cells = "".join(_EIGHTHS[max(0, min(8, eighth - 8 * row))] for eighth in eighths)
        lines.append(f"{'' if label is None else f'{label:.4g}':>9} {cells}")
    return lines


def _means(values: Sequence[float], most: int) -> list[float]:
    count = min(len(values), most)
    parts = (values[n * len(values) // count : (n + 1) * len(values) // count] for n in range(count))
    return [statistics.fmean(part) for part in parts]


def _eighths(values: Sequence[float], height: int, *, is_log: bool = False) -> list[int]:
    """Return how high each value stands, in eighths of a line: the lowest 1, the highest 8 times `height`."""
    heights = [math.log10(value) for value in values] if is_log else values
    low, high = min(heights), max(heights)
    return [round((value - low) / ((high - low) or 1.0) * (8 * height - 1)) + 1 for value in heights]


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
        heading = f"loss, steps {run.losses[0][0]:,.0f} to {run.losses[-1][0]:,.0f}"
        heading += ", on a logarithmic scale" if min(loss for _, loss in run.losses) > 0 else ""
        parts += [Text(heading, style="dim"), *(Text(line) for line in curve(run.losses, width, height))]
    parts += [Text(line) for line in _scores(run, width)]
    if run.ranks:
        parts += [_ranks(run), *_legend(run, width)]
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
    return "  ".join(_listed(run))


def _listed(run: WatchedRun) -> list[str]:
    """Return the last values, each with its name; the only learning rate is called ``lr``."""
    found = ({"loss": run.losses[-1][1]} if run.losses else {}) | run.metrics
    if "lr/1" not in found:
        found = {"lr" if key == "lr/0" else key: value for key, value in found.items()}
    return [f"{key} {_spelt(value)}" for key, value in found.items()]


def _spelt(value: float) -> str:
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"


def _packed(entries: Iterable[str], width: int) -> Iterator[str]:
    """Yield lines of entries, two blanks apart, none of them broken unless it is longer than a line."""
    line = ""
    for entry in entries:
        if line and len(line) + 2 + len(entry) > width:
            yield line
            line = entry
        else:
            line += f"  {entry}" if line else entry
    if line:
        yield line


def _scores(run: WatchedRun, width: int) -> Iterator[str]:
    """Yield a small curve of each metric that has been measured more than once; of learning rates none."""
    found = [(name, [value for _, value in points if math.isfinite(value)])
             for name, points in run.history.items() if not name.startswith("lr")]  # fmt: skip
    found = [(name[:24], values) for name, values in found if len(values) > 1][:_MOST_SCORES]
    names = max((len(name) for name, _ in found), default=0)
    for name, values in found:
        told = f"{_spelt(values[-1])} ({_spelt(min(values))} to {_spelt(max(values))})"
        columns = max(8, min(40, width - names - len(told) - 2))
        cells = "".join(_EIGHTHS[eighth] for eighth in _eighths(_means(values, columns), 1))
        yield f"{name:<{names}} {cells} {told}"


def _where(run: WatchedRun, width: int) -> Iterator[str]:
    """Yield how far it is, and how well."""
    name = (run.score.get("strategy") or {}).get("name", "exact")
    facts = run.facts()
    workers = counted(facts["workers"], "worker")
    if run.score:
        yield f"{name}, {run.score.get('replicas', '?')} replicas" + f" on {workers}" * bool(run.ranks)
    yield _progress(run)
    if run.num_steps and "stopped_by" not in run.result:
        share = min(1.0, run.step / run.num_steps)
        full = round(share * (width - 7))
        yield "█" * full + "░" * (width - 7 - full) + f" {share:5.0%}"
    yield from _packed(_listed(run), width)
    if facts["state"] in {"finished", "stopped"}:
        yield from _packed(_ended(run), width)
    if facts["state"] == "ended":
        saved = newest_checkpoint(run.path)
        if saved:
            yield f"not finished: the same command goes on after step {saved}"
        else:
            yield "not finished, no checkpoint: the same command starts from the beginning"


def _ended(run: WatchedRun) -> Iterator[str]:
    """Yield what a run that has ended leaves, and what to do next."""
    if isinstance(why := run.result.get("stopped_by"), str):
        yield f"stopped by its program: {why}"
    if isinstance(seconds := run.result.get("wall_s"), int | float):
        yield f"took {spell_seconds(seconds)} (last launch)"
    if isinstance(fingerprint := run.result.get("fingerprint"), str):
        yield f"fingerprint {fingerprint[:16]}..."
    yield f"next: {shlex.join(['unisono', 'report', plain(str(run.path))])}"


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
    return table


def _legend(run: WatchedRun, width: int) -> "Iterator[Text]":
    """Yield lines that say which letter and colour of a bar is which phase, of the phases that there are."""
    from rich.text import Text

    seen = {phase for rank in run.ranks.values() for phase, seconds in rank.phases().items() if seconds}
    for line in _packed((f"{phase[0].upper()} {phase}" for phase in _COLOURS if phase in seen), width):
        words = Text(line, style="dim")
        for phase in seen & _COLOURS.keys():
            words.highlight_words([f"{phase[0].upper()} {phase}"], style=f"not dim {_COLOURS[phase]}")
        yield words


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
    if damage := run.damage():
        yield plain(damage)
    if run.num_damaged:
        yield f"{counted(run.num_damaged, 'line')} that no run writes"
