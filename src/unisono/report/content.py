"""What a report says, as plain values: sections of sentences, tables and charts (pure).

The files ``*_section.py`` make sections of what was measured; `page` shows them as HTML, `picture` their charts as SVG.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from unisono.report.charts import Series, Spell, line_chart, stacked_bars
from unisono.report.svg import Drawing
from unisono.system.words import counted

_MOST_VALUES = 24
_MOST_STRETCHES = 40
_SHOT_UP = 3  # times the first step's loss


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of text."""

    title: str  #: Its caption.
    head: Sequence[str]  #: Names of the columns.
    rows: Sequence[Sequence[str]]  #: Cells; the first of a row names it.
    numeric: frozenset[int] = frozenset()  #: Columns set flush right.
    mono: frozenset[int] = frozenset()  #: Columns in a fixed-width font.


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart and its values."""

    title: str  #: Above it.
    drawing: Drawing  #: From `charts`.
    values: Table  #: The same as a table.
    note: str = ""  #: Below it.
    finding: str = ""  #: What it shows, in one sentence; above it.


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """A sentence worth reading; `tone` is ``good``, ``alarm`` or empty."""

    text: str
    tone: str = ""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page."""

    title: str  #: Its heading.
    lines: Sequence[str] = ()  #: Below it.
    findings: Sequence[Remark] = ()  #: What the numbers say.
    tables: Sequence[Table] = ()  #: Always shown.
    charts: Sequence[Chart] = ()  #: Two in a row where there is room.
    folded: Sequence[Table] = ()  #: Tables to be opened.


def line_view(
    title: str,
    series: Sequence[Series],
    x_name: str,
    spell_x: Spell,
    spell_y: Spell,
    note: str = "",
    finding: str = "",
    **how: Any,
) -> Chart:
    """Return lines and their values: a row for each x, a column for each line; long ones thinned."""
    shown = [line for line in series if not line.is_pale or line.colour is None]  # not what another one is made of
    xs = sorted({x for line in shown for x, _ in line.points})
    if len(xs) > _MOST_VALUES:
        xs = [xs[number * (len(xs) - 1) // (_MOST_VALUES - 1)] for number in range(_MOST_VALUES)]
    found = [dict(line.points) for line in shown]
    rows = [[spell_x(x), *("" if x not in one else spell_y(one[x]) for one in found)] for x in xs]
    head = [x_name, *(line.name for line in shown)]
    values = Table(title=title, head=head, rows=rows, numeric=frozenset(range(len(head))))
    label = f"{title} over {x_name}"
    drawing = line_chart(label, series, x_label=x_name, spell_x=spell_x, spell_y=spell_y, **how)
    return Chart(title=title, drawing=drawing, values=values, note=note, finding=finding)


def bar_view(
    title: str, bars: Mapping[str, Mapping[str, float]], name: str, spell: Spell, note: str = "", finding: str = ""
) -> Chart:
    """Return bars, cut into parts, and their values: a row for each bar, whose first cell is headed `name`."""
    parts = list(next(iter(bars.values())))
    rows = [[bar, *(spell(found[part]) for part in parts)] for bar, found in bars.items()]
    values = Table(title=title, head=[name, *parts], rows=rows, numeric=frozenset(range(1, 1 + len(parts))))
    return Chart(title=title, drawing=stacked_bars(title, bars, spell=spell), values=values, note=note, finding=finding)


def thin(points: Sequence[tuple[float, float]], most: int) -> tuple[list[tuple[float, float]], int]:
    """Return at most `most` points, and of how many each stretch is: its lowest and its highest stay, and both ends.

    1: all are there. They show how far values reach, not how many lie where; for that see `sample`.
    """
    finite = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if len(finite) <= most or most < 4:
        return finite[: max(most, 0)], 1
    inner = finite[1:-1]
    width = -(-len(inner) // ((most - 2) // 2))
    stretches = [inner[first : first + width] for first in range(0, len(inner), width)]
    ends = ({f(part, key=lambda point: point[1]) for f in (min, max)} for part in stretches)
    return [finite[0], *itertools.chain(*map(sorted, ends)), finite[-1]], width


def sample(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return at most `most` points, whatever their values are: every k-th, and the last."""
    finite = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    every = max(1, -(-(len(finite) - 1) // max(1, most - 1)))
    return [*finite[:-1:every], *finite[-1:]]


def mean_of(points: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], int]:
    """Return running means, of as many points as a curve has room for, and of how many each is; 1: as they are."""
    finite = [point for point in points if math.isfinite(point[1])]
    width = len(finite) // _MOST_STRETCHES
    if width < 3:
        return finite, 1
    half = width // 2
    sums = list(itertools.accumulate((value for _, value in finite), initial=0.0))
    ends = ((max(0, place - half), min(len(finite), place + half + 1)) for place in range(len(finite)))
    means = [(sums[last] - sums[first]) / (last - first) for first, last in ends]
    return [(x, mean) for (x, _), mean in zip(finite, means, strict=True)], 2 * half + 1


def rates_of(points: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], int]:
    """Return what `mean_of` does, of speeds: what goes through in a stretch over the time that it takes."""
    means, width = mean_of([(x, 1 / value) for x, value in points])
    return [(x, 1 / value) for x, value in means], width


def band_of(name: str, points: Sequence[tuple[float, float]], most: int, colour: int, left_out: float = 0.0) -> Series:
    """Return a pale line of all points; of more than `most` a band: the lowest and the highest of each stretch.

    Args:
        name: Of a line of all points.
        points: (x, y).
        most: Points, or stretches.
        colour: Of the line that they are of.
        left_out: Which share of a stretch, 0 to 1, is left out at its lower and at its upper end.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) <= most:
        return Series(name=name, points=finite, is_pale=True, colour=colour)
    width = -(-len(finite) // most)
    stretches = [finite[first : first + width] for first in range(0, len(finite), width)]
    places, band = [], []
    for part in stretches:
        values, away = sorted(value for _, value in part), round(left_out * (len(part) - 1))
        band.append((values[away], values[-1 - away]))
        places.append((part[len(part) // 2][0], band[-1][1]))
    places[0], places[-1] = (finite[0][0], places[0][1]), (finite[-1][0], places[-1][1])
    is_whole = round(left_out * (width - 1)) == 0
    told = "lowest and highest of" if is_whole else f"the middle {1 - 2 * left_out:.0%} of"
    return Series(name=f"{told} {width} steps", points=places, band=band, is_pale=True, colour=colour)


def room_of(num_sources: int) -> int:
    """Return for how many points of a line a page of so many sources has room."""
    return max(40, 160 // num_sources)


def from_to(losses: Sequence[tuple[float, float]]) -> str:
    """Say where a curve begins and ends, beyond single steps."""
    ends = ends_of(losses)
    if ends is None:
        return ""
    first, last, few = ends
    which = f"the first and the last {counted(few, 'step')}" if few > 1 else "the first and the last step"
    which = f"the first step and the last {few}" if few > 1 and first == losses[0][1] else which
    told = f"rom {first:.4g} to {last:.4g}, in {which}"
    if diverges(losses):
        return f"Risen f{told}: lower the learning rate, or set clip_norm."
    return f"F{told}."


def ends_of(losses: Sequence[tuple[float, float]]) -> tuple[float, float, int] | None:
    """Return the means of a curve's first and last steps, and of how many steps each is; None where there is none.

    Where the loss shoots up within the first steps, it begins at the first of them alone.
    """
    few = min(10, max(1, len(losses) // 2))
    values = [value for _, value in losses]
    if not values:
        return None
    first, last = statistics.fmean(values[:few]), statistics.fmean(values[-few:])
    return values[0] if first > _SHOT_UP * values[0] > 0 else first, last, few


def diverges(losses: Sequence[tuple[float, float]]) -> bool:
    """Say whether a loss is half as much again as at its beginning, or no number any more."""
    first, last, _ = ends_of(losses) or (0.0, 0.0, 0)
    return not math.isfinite(last) or last > 1.5 * first > 0


def trend_of(losses: Sequence[tuple[float, float]]) -> str:
    """Say where a loss goes: ``falling``, ``rising`` or ``level``, beyond its noise; nothing of less than 20 steps.

    The last quarter of the steps, of 50 at most, is compared with as many before it.
    """
    few = min(50, len(losses) // 4)
    values = [value for _, value in losses[-2 * few :]]
    if few < 5 or not all(map(math.isfinite, values)):
        return ""
    before, now = values[:few], values[few:]
    change = statistics.fmean(now) - statistics.fmean(before)
    noise = 2 * math.sqrt((statistics.variance(before) + statistics.variance(now)) / few)
    return "level" if abs(change) <= noise else "falling" if change < 0 else "rising"


def range_of(points: Sequence[tuple[float, float]]) -> str:
    """Say where a metric was highest and lowest, and what it is at the end."""
    high, low = max(points, key=lambda point: point[1]), min(points, key=lambda point: point[1])
    if high[1] == low[1]:
        return f"{high[1]:.4g} throughout."
    return (
        f"Highest {high[1]:.4g} (step {high[0]:,.0f}), lowest {low[1]:.4g} (step {low[0]:,.0f}), "
        f"last {points[-1][1]:.4g}."
    )


def log_ends(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the ends of a logarithmic axis, for values above 0 that span more than a decade; None: the axis is not."""
    values = [value for _, value in points if math.isfinite(value)]
    if not values or min(values) <= 0 or max(values) < 10 * min(values):
        return None
    return min(values), max(values)


def loss_label(points: Sequence[tuple[float, float]]) -> str:
    """Return what stands above the axis of losses."""
    return "loss, on a logarithmic scale" if log_ends(points) else "loss"


def unique(names: Sequence[str]) -> list[str]:
    """Return names with a number where one comes again."""
    return [name if names.count(name) == 1 else f"{name} ({number + 1})" for number, name in enumerate(names)]


def flat(value: Any, prefix: str = "") -> list[list[str]]:
    """Return nested entries as rows of dotted name and value, cut where they are long or many."""
    if isinstance(value, Mapping):
        pairs = [(f"{prefix}.{key}" if prefix else str(key), part) for key, part in value.items()]
    elif isinstance(value, list) and any(isinstance(part, Mapping | list) for part in value):
        pairs = [(f"{prefix}[{number}]", part) for number, part in enumerate(value)]
    else:
        text = str(value)
        return [[prefix, text if len(text) <= 200 else text[:199] + "\N{HORIZONTAL ELLIPSIS}"]]
    return [row for name, part in pairs for row in flat(part, name)][:200]
