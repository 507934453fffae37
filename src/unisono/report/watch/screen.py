"""What `unisono watch` draws in a terminal: plain values to text, by rich."""

import itertools
import math
import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from unisono.report.content import diverges, ends_of, trend_of
from unisono.report.run_view import newest_checkpoint
from unisono.report.watch.state import RankState, WatchedRun, plain
from unisono.system.words import counted, spell_bytes, spell_seconds

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
_SIDE_BY_SIDE = 110  # columns from which the loss stands beside what is measured
_GAP = 3
_MOST_BAR = 60
_MOST_RANKS = 16
_MOST_SCORES = 4
_LEAST_CURVE = 8


def curve(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Return a curve as lines of text, the newest point at the right; on a logarithmic scale where all are above zero.

    Where there are more points than columns, a column shows the mean of its stretch; where there are fewer, each point
    takes several columns.

    Args:
        points: (x, y); what is not finite is left out.
        width: Columns, of which ten are for the numbers at the left.
        height: Lines.
    """
    columns = max(8, width - 10)
    values = _spread([y for _, y in points if math.isfinite(y)], columns)
    if not values:
        return []
    eighths = _eighths(values, height, is_log=min(values) > 0)
    lines = []
    for row in reversed(range(height)):
        label = max(values) if row == height - 1 else min(values) if row == 0 else None
        cells = "".join(_EIGHTHS[max(0, min(8, eighth - 8 * row))] for eighth in eighths)
        lines.append(f"{'' if label is None else f'{label:.4g}':>9} {cells}")
    return lines


def _spread(values: Sequence[float], columns: int) -> list[float]:
    """Return one value for each column, the mean of its stretch; nothing of nothing."""
    ends = [n * len(values) // columns for n in range(columns + 1 if values else 0)]
    return [statistics.fmean(values[first : max(last, first + 1)]) for first, last in itertools.pairwise(ends)]


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
    told, style = verdict(run)
    parts: list[Text | Table] = [Text(told, style=style), *(Text(line) for line in _where(run, width))]
    is_wide = width >= _SIDE_BY_SIDE
    half = (width - _GAP) // 2 if is_wide else width
    left: list[Text | Table] = [*_loss(run, half, height + 3 * is_wide)]
    right: list[Text | Table] = [Text(line) for line in _scores(run, half)]
    if run.ranks:
        right += [_ranks(run, half), *_legend(run, half)]
    parts += [_beside(left, right, half)] if is_wide and left and right else [*left, *right]
    parts += [Text(line, style="yellow") for line in _events(run)]
    used = facts["leader_memory_bytes"]
    room = [f"{spell_bytes(facts['disk_free_bytes'])} free on the disk"]
    room += [f"{spell_bytes(used)} of memory in the leader"] if used else []
    parts += [Text(line, style="dim") for line in _packed(room, width)]
    title = Text.assemble((run.name, "bold"), " ", (state, _TONES.get(state, "red")))
    return Panel(Group(*parts), title=title, title_align="left")


def _loss(run: WatchedRun, width: int, height: int) -> "Iterator[Text]":
    from rich.text import Text

    if run.losses:
        scale = ", log scale" if min(loss for _, loss in run.losses) > 0 else ""
        yield Text(f"loss, steps {run.losses[0][0]:,.0f} to {run.losses[-1][0]:,.0f}{scale}", style="dim")
        yield from map(Text, curve(run.losses, width, height))


def _beside(left: "Iterable[Text | Table]", right: "Iterable[Text | Table]", width: int) -> "Table":
    """Return two columns of `width` each."""
    from rich.console import Group
    from rich.table import Table

    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    table.add_column(width=width)
    table.add_column(width=width)
    table.add_row(Group(*left), Group(*right))
    return table


def headline(run: WatchedRun) -> str:
    """Return one line: the run, its state, what is to be known of it, how far and how fast it is, its last values."""
    told = f"{run.name} {run.state}: {verdict(run)[0]} · {', '.join(_progress(run))} · {'  '.join(_listed(run))}"
    return told.rstrip(" ·")


def verdict(run: WatchedRun) -> tuple[str, str]:
    """Return in one sentence how a run does, and the style in which it is shown: red where something is to be done."""
    facts, state = run.facts(), run.state
    ends = ends_of(run.losses)
    loss = f"loss from {ends[0]:.4g} to {ends[1]:.4g}" if ends else "no loss yet"
    if state == "ended":
        saved = newest_checkpoint(run.path)
        how = f"goes on after step {saved}" if saved else "starts from the beginning"
        told = f"not finished{'' if saved else ', no checkpoint'}: the same command {how}"
        return f"{told}; {loss}: it diverges" if diverges(run.losses) else told, "bold red"
    if diverges(run.losses):
        return f"the loss diverges: {loss}. Lower the learning rate, or set clip_norm", "bold red"
    if state in {"finished", "stopped"}:
        return loss, "bold green"
    if state == "silent":
        return "no step for long: it waits, or was killed on another machine", "bold red"
    if state == "starting":
        return "no step yet", "bold cyan"
    trend = trend_of(run.losses)
    parts = ["on track" if facts["eta_s"] is None else f"on track: {timedelta(seconds=round(facts['eta_s']))} left"]
    parts += [f"loss {trend}"] if trend else []
    parts += [f"rank {facts['slowest']} is slow"] if facts["slowest"] is not None else []
    return ", ".join(parts), "bold cyan"


def _progress(run: WatchedRun) -> Iterator[str]:
    facts = run.facts()
    yield f"step {run.step:,}" + (f" of {run.num_steps:,}" if run.num_steps else "")
    yield f"epoch {facts['epoch']}"
    if speed := run.speed:
        yield f"{facts['speed_is']} {speed.by_clock:,.0f} samples/s"
        yield f"{speed.within:,.0f} in steps"
    if facts["state"] in {"silent", "ended"} and math.isfinite(run.silent_s):
        yield f"last step {spell_seconds(run.silent_s)} ago"


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
    if found:
        yield "scores: last (lowest to highest)"
    for name, values in found:
        told = f"{_spelt(values[-1])} ({_spelt(min(values))} to {_spelt(max(values))})"
        if width - names - len(told) - 2 < _LEAST_CURVE:
            told = _spelt(values[-1])
        columns = max(_LEAST_CURVE, min(40, width - names - len(told) - 2))
        cells = "".join(_EIGHTHS[eighth] for eighth in _eighths(_spread(values, columns), 1))
        yield f"{name:<{names}} {cells} {told}"


def _where(run: WatchedRun, width: int) -> Iterator[str]:
    """Yield how far it is, and how well."""
    name = (run.score.get("strategy") or {}).get("name", "exact")
    facts = run.facts()
    workers = counted(facts["workers"], "worker")
    if run.score:
        yield f"{name}, {run.score.get('replicas', '?')} replicas" + f" on {workers}" * bool(run.ranks)
    yield from _packed(_progress(run), width)
    if run.num_steps and "stopped_by" not in run.result:
        share = min(1.0, run.step / run.num_steps)
        full = round(share * (width - 7))
        yield "█" * full + "░" * (width - 7 - full) + f" {share:5.0%}"
    yield from _packed(_listed(run), width)
    if facts["state"] in {"finished", "stopped"}:
        yield from _packed(_ended(run), width)


def _ended(run: WatchedRun) -> Iterator[str]:
    """Yield what a run that has ended leaves, and what to do next."""
    if isinstance(why := run.result.get("stopped_by"), str):
        yield f"stopped by its program: {why}"
    if isinstance(seconds := run.result.get("wall_s"), int | float):
        yield f"took {spell_seconds(seconds)} (last launch)"
    if isinstance(fingerprint := run.result.get("fingerprint"), str):
        yield f"fingerprint {fingerprint[:16]}..."
    yield f"next: {shlex.join(['unisono', 'report', plain(str(run.path))])}"


def _ranks(run: WatchedRun, width: int) -> "Table":
    """Return where each rank's time goes, of its last steps."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    bar = max(8, min(_MOST_BAR, width - len("rank  one step    slow")))
    for name in ("rank", "one step", "time goes to", ""):
        table.add_column(name, header_style="dim", justify="left" if name.startswith("time") else "right")
    lost, slowest = run.lost(), run.slowest()
    for number, rank in sorted(run.ranks.items())[:_MOST_RANKS]:
        phases = rank.phases()
        note = "gone" if number in lost else "slow" if number == slowest else ""
        took = spell_seconds(sum(phases.values())) if phases else "-"
        table.add_row(str(number), took, _bar(rank, bar), Text(note, style="yellow"))
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


def _bar(rank: RankState, columns: int) -> "Text":
    """Return a rank's phases as coloured blocks in so many columns; where there is no colour, each as its letter."""
    from rich.text import Text

    phases = rank.phases()
    whole = sum(phases.values()) or 1.0
    out = Text()
    done, drawn = 0.0, 0
    for phase, seconds in phases.items():
        done += seconds
        upto = round(done / whole * columns)
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
