"""What `unisono watch` draws in a terminal: plain values to text, by rich; within the terminal's lines."""

import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from unisono.report.watch.curves import EIGHTHS, PALE, curve, eighths, is_log, means, spread
from unisono.report.watch.ranks import RankState
from unisono.report.watch.state import WatchedRun
from unisono.report.watch.told import ended, events, held_up, progress, room, row, setup, spelt, values, verdict
from unisono.system.words import counted, packed, spell_seconds

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

_COLOURS = {
    "data": "yellow", "forward": "cyan", "backward": "blue", "reduce": "magenta", "update": "green",
    "checkpoint": "red", "evaluate": "white", "other": "bright_black",
}  # fmt: skip
_TONES = {"finished": "green", "training": "cyan", "starting": "cyan"}
_SIDE_BY_SIDE = 110  # columns from which the loss stands beside what is measured
_GAP = 3
_MOST_BAR = 60
_MOST_RANKS = 16
_MOST_METRICS = 4
_MOST_EVENTS = 12
_LEAST_CURVE = 8
_USUAL_CURVE = 5  # lines, where nobody says how many there are


@final
@dataclass(frozen=True, slots=True)
class _Size:
    """How much of a run is drawn: lines of its curve, lines of events, ranks, metrics, what the letters of bars mean.

    `is_least`: only how it does, how far it is, its values, what holds it up, the gravest event, what to do next.
    """

    curve: int
    events: int = _MOST_EVENTS
    ranks: int = _MOST_RANKS
    metrics: int = _MOST_METRICS
    legend: bool = True
    is_least: bool = False


_SIZES = (
    *map(_Size, (16, 13, 10, 8, 7, 6, _USUAL_CURVE, 4, 3)),
    *(_Size(3, events, ranks) for events, ranks in ((6, 16), (3, 16), (3, 8), (2, 4))),
    *(_Size(lines, 2, 4, metrics, legend=False) for lines, metrics in ((3, 2), (2, 2), (2, 0))),
    *(_Size(lines, 1, ranks, 0, legend=False) for lines, ranks in ((2, 2), (2, 0))),
    *(_Size(lines, events, 0, 0, False, is_least=True) for lines, events in ((3, 1), (2, 1), (0, 1), (0, 0))),
)
"""From the largest to the smallest: the first for which the terminal has lines is drawn."""


def draw(runs: Sequence[WatchedRun], width: int, height: int | None = None, keys: str = "") -> "Group":
    """Return the screen: several runs in a table, and below it each by itself, as far as there is room.

    Args:
        runs: The runs.
        width: Columns of the terminal.
        height: Its lines; None: as many as it takes.
        keys: Which keys do what, to be shown in the frame.
    """
    from rich.console import Console, Group
    from rich.text import Text

    if len(runs) > 1 and height is not None and len(runs) + 2 > height:  # those that train first
        shown = sorted(runs, key=lambda run: run.state not in {"training", "starting"})[: max(1, height - 2)]
        more = Text(f"and {counted(len(runs) - len(shown), 'more run', 'more runs')}", style="dim")
        return Group(side_by_side(shown, width), more)
    several = [side_by_side(runs, width)] if len(runs) > 1 else []
    console = Console(file=io.StringIO(), width=width)

    def fitting(size: _Size) -> Group | None:
        found = Group(*several, *(_panel(run, width - 4, size, keys) for run in runs))
        return found if height is None or len(console.render_lines(found)) <= height else None

    for size in _SIZES:
        if height is None and size.curve > _USUAL_CURVE:
            continue
        if found := fitting(size):
            most = min(_MOST_EVENTS, max(len([*events(run)]) for run in runs))
            for number in range(size.events + 1, most + 1):  # what is left of the terminal is theirs
                found = fitting(replace(size, events=number)) or found
            return found
    if several:
        below = " · ".join(filter(None, ["unisono watch RUN shows one alone", keys]))
        return Group(*several, Text(below, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(_panel(runs[0], width - 4, _SIZES[-1], keys, height))


def side_by_side(runs: Sequence[WatchedRun], width: int) -> "Table":
    """Return several runs in a table: what matters most at the left, as many columns as there is room for."""
    from rich.table import Table

    rows = [row(run) for run in runs]
    columns = {name: [each.get(name, "-") for each in rows] for name in dict.fromkeys(itertools.chain(*rows))}
    table, used = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0)), 0
    fitting = []
    for name, cells in columns.items():
        used += max(map(len, [name, *cells])) + 2
        if used - 2 > width:
            break
        fitting.append(cells)
        table.add_column(name, header_style="dim", no_wrap=True, justify="left" if len(fitting) < 3 else "right")
    for line in zip(*fitting, strict=True):
        table.add_row(*line)
    return table


def _panel(run: WatchedRun, width: int, size: _Size, keys: str = "", height: int | None = None) -> "Panel":
    """Return one run in a frame; with `height` no more than its first lines."""
    from rich.console import Console, Group
    from rich.panel import Panel
    from rich.text import Text

    state = run.state
    told, style = verdict(run)
    parts: list[RenderableType] = [Text(told, style=style)]
    parts += [Text(line) for line in (_least if size.is_least else _where)(run, width)]
    parts += [Text(line, style="yellow") for line in held_up(run)]
    if height is not None:
        lines = itertools.chain(*(part.wrap(Console(), width) for part in parts if isinstance(part, Text)))
        parts = list(itertools.islice(lines, max(1, height - 2)))
    half = (width - _GAP) // 2 if (is_wide := width >= _SIDE_BY_SIDE) else width
    left: list[RenderableType] = [*_loss(run, half, size.curve + 3 * (is_wide and size.curve > 0))]
    right: list[RenderableType] = [Text(line) for line in _metrics(run, half, size.metrics)]
    if size.ranks and any(rank.steps for rank in run.ranks.values()):
        right += [_ranks(run, half, size.ranks), *(_legend(run, half) if size.legend else ())]
    parts += [_beside(left, right, half)] if is_wide and left and right else [*left, *right]
    parts += [Text(line, style="yellow") for line in events(run, size.events)]
    parts += [] if size.is_least else [Text(line, style="dim") for line in packed(room(run), width)]
    title = Text.assemble((run.name, "bold"), " ", (state, _TONES.get(state, "red")))
    below = Text(keys, style="dim") if keys else None
    return Panel(Group(*parts), title=title, title_align="left", subtitle=below, subtitle_align="right")


def _loss(run: WatchedRun, width: int, height: int) -> "Iterator[Text]":
    from rich.text import Text

    if run.losses and height:
        lines = curve(run.losses, width, height)
        notes = [f"steps {run.losses[0][0]:,.0f} to {run.losses[-1][0]:,.0f}"]
        notes += ["log scale"] if is_log(means(run.losses, width)) else []
        notes += [f"{PALE} highest steps"] if any(PALE in line for line in lines) else []
        yield Text(f"loss, {', '.join(notes)}", style="dim")
        yield from map(Text, lines)


def _beside(left: "Iterable[RenderableType]", right: "Iterable[RenderableType]", width: int) -> "Table":
    """Return two columns of `width` each."""
    from rich.console import Group
    from rich.table import Table

    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    table.add_column(width=width)
    table.add_column(width=width)
    table.add_row(Group(*left), Group(*right))
    return table


def _metrics(run: WatchedRun, width: int, most: int) -> Iterator[str]:
    """Yield a small curve of each metric that has been measured more than once; of learning rates none."""
    found = [(name, [value for _, value in points if math.isfinite(value)])
             for name, points in run.history.items() if not name.startswith("lr")]  # fmt: skip
    found = [(name[:24], values) for name, values in found if len(values) > 1][:most]
    names = max((len(name) for name, _ in found), default=0)
    if found:
        yield "metrics: last (lowest to highest)"
    for name, measured in found:
        told = f"{spelt(measured[-1])} ({spelt(min(measured))} to {spelt(max(measured))})"
        if width - names - len(told) - 2 < _LEAST_CURVE:
            told = spelt(measured[-1])
        columns = max(_LEAST_CURVE, min(40, width - names - len(told) - 2))
        cells = "".join(EIGHTHS[eighth] for eighth in eighths(spread(measured, columns), 1))
        yield f"{name:<{names}} {cells} {told}"


def _where(run: WatchedRun, width: int) -> Iterator[str]:
    """Yield how far it is, and how well."""
    if told := setup(run):
        yield told
    yield from packed(progress(run), width)
    yield from _bar_of_steps(run, width)
    yield from packed(values(run), width)
    yield from packed(ended(run), width)


def _bar_of_steps(run: WatchedRun, width: int) -> Iterator[str]:
    """Yield how far it is as a bar, where it is known when it ends."""
    if run.num_steps and "stopped_by" not in run.result:
        share = min(1.0, run.step / run.num_steps)
        full = round(share * (width - 7))
        yield "█" * full + "░" * (width - 7 - full) + f" {share:5.0%}"


def _least(run: WatchedRun, width: int) -> Iterator[str]:
    """Yield of `_where` what a small terminal has room for."""
    yield from packed(progress(run), width)
    yield from _bar_of_steps(run, width)
    yield from packed(values(run), width)
    yield from (line for line in ended(run) if line.startswith("next: "))


def _ranks(run: WatchedRun, width: int, most: int) -> "Table":
    """Return where each rank's time goes, of its last steps."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    bar = max(8, min(_MOST_BAR, width - len("rank  one step    slow")))
    for name in ("rank", "one step", "time goes to", ""):
        table.add_column(name, header_style="dim", justify="left" if name.startswith("time") else "right")
    lost, slow = run.lost(), run.slowest()
    for number, rank in sorted(run.ranks.items())[:most]:
        phases = rank.phases()
        note = "gone" if number in lost else "slow" if slow and number == slow.rank else ""
        took = spell_seconds(sum(phases.values())) if phases else "-"
        table.add_row(str(number), took, _bar(rank, bar), Text(note, style="yellow"))
    if len(run.ranks) > most:
        table.add_row("...", "", Text(f"{len(run.ranks) - most} more"), "")
    return table


def _legend(run: WatchedRun, width: int) -> "Iterator[Text]":
    """Yield lines that say which letter and colour of a bar is which phase, of the phases that there are."""
    from rich.text import Text

    seen = {phase for rank in run.ranks.values() for phase, seconds in rank.phases().items() if seconds}
    for line in packed((f"{phase[0].upper()} {phase}" for phase in _COLOURS if phase in seen), width):
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
