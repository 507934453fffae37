"""Charts: lines with error bars, bars, spans of time (pure; plain values in, drawings out); a point shows its value."""

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from unisono.report.svg import WIDTH, Drawing, cut, width_of

HEIGHT = 280  # of a chart of lines in pixels; its legend comes on top
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 42
_BAR, _NAMES, _LEGEND = 26, 146, 20
_MOST_DOTS, _STRIPS, _LEAST_STRIPS = 24, 200, 40  # a line's dots; places with values under the pointer, for all lines
_MOST_ENDS, _WIDEST_END, _APART, _NEAR = 5, 170, 18, 60  # names beside the ends of lines, instead of a legend
_LARGE = 16  # pixels of a text in a picture, and on a phone (page.html): for so much there must be room

Spell = Callable[[float], str]
Scale = Callable[[float], float]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line."""

    name: str  #: Of the line.
    points: Sequence[tuple[float, float]]  #: (x, y), ascending in x.
    #: For each point (low, high), for error bars; empty where there is none.
    spread: Sequence[tuple[float, float]] = ()
    labels: Sequence[str] = ()  #: For each point a text beside it; empty where there is none.
    is_limit: bool = False  #: A dashed line without points, such as the ideal.
    is_pale: bool = False  #: A thin, pale line without points: what a smooth one was made of.
    #: For each point (low, high): a pale band in place of a line, how far values reach.
    band: Sequence[tuple[float, float]] = ()
    colour: int | None = None  #: Of another line, by its place; None: its own.


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Something that lasted."""

    row: str  #: Name of the row it stands in.
    began: float  #: On the chart's axis.
    ended: float  #: Not before `began`.
    kind: str  #: Names its colour in the legend.
    text: str  #: Shown on hover.
    label: str = ""  #: On it, where it is wide enough.


def line_chart(
    label: str, series: Sequence[Series], *, x_label: str, spell_x: Spell, spell_y: Spell, log_x: bool = False,
    log_y: tuple[float, float] | None = None, from_zero: bool = True, ticks_at_points: bool = False,
    alarms: frozenset[float] = frozenset(), y_label: str = "",
) -> Drawing:  # fmt: skip
    """Return lines over one pair of axes.

    Args:
        label: What the chart shows, for screen readers.
        series: At least one point in all.
        x_label: Below the axis.
        spell_x: How values of x are written.
        spell_y: How values of y are written.
        log_x: A logarithmic axis of x; all x above 0.
        log_y: Both ends of a logarithmic axis of y, above 0; None: as the values are, not logarithmic.
        from_zero: The axis of y begins at 0.
        ticks_at_points: One tick for each x there is, instead of round numbers.
        alarms: Those x that are written in red.
        y_label: Above the axis: what y is, in which unit.
    """
    xs = sorted({x for line in series for x, _ in line.points})
    marks = _log_ticks(*log_y) if log_y else _ticks_of(series, from_zero)
    low, high = log_y or (marks[0], marks[-1])
    shown = [(number, line) for number, line in enumerate(series) if line.points]
    out = Drawing(label, HEIGHT)
    beside = _beside([line for _, line in shown])
    scale_x = _scale(xs[0], xs[-1], _LEFT + 8, WIDTH - _RIGHT - 8 - beside, log_x)
    top = _TOP + (16 if y_label else 0)
    scale_y = _scale(low, high, HEIGHT - _BOTTOM, top, log_y is not None)
    if y_label:
        out.text(8, 12, y_label, "axis")
    for mark in marks:
        y = scale_y(mark)
        out.line([(_LEFT, y), (WIDTH - _RIGHT - beside, y)], "grid")
        out.text(_LEFT - 6, y + 4, spell_y(mark), at="end")
    wanted = xs if ticks_at_points else (log_x and _log_ticks(xs[0], xs[-1])) or ticks(xs[0], xs[-1], 6)
    if all(x == round(x) for x in xs):  # steps: there is none between two
        wanted = [mark for mark in wanted if mark == round(mark)]
    for x in _spread(wanted if log_x else [xs[0], *wanted], xs, scale_x, spell_x):
        kind = "alarm" if x in alarms else "tick"
        out.text(scale_x(x), HEIGHT - _BOTTOM + 16, spell_x(x), kind, at="middle")
    out.text((WIDTH + _LEFT - _RIGHT - beside) / 2, HEIGHT - 6, x_label, "axis", at="middle")
    for number, line in sorted(shown, key=lambda each: not each[1].is_pale):  # what is pale lies below
        _line(out, number, line, scale_x, scale_y, beside > 0)
    if beside:
        _ends(out, shown, scale_x, scale_y)
    else:
        _legend(out, [(line.name, _kind(number, line)) for number, line in shown])
    if measured := [line for _, line in shown if not line.is_limit]:
        _values(out, measured, scale_x, (top, HEIGHT - _BOTTOM), spell_x, spell_y)
    return out


def _beside(lines: Sequence[Series]) -> float:
    """Return the room of names beside the ends of lines; 0: they are too many or too long, or there is one."""
    widest = max(width_of(line.name, _LARGE) for line in lines)
    return widest + 4 if 1 < len(lines) <= _MOST_ENDS and widest <= _WIDEST_END else 0.0


def _ends(out: Drawing, lines: Sequence[tuple[int, Series]], scale_x: Scale, scale_y: Scale) -> None:
    """Write each line's name beside its last point, or the last of all where that is near; names are moved apart."""
    last_x = max(scale_x(line.points[-1][0]) for _, line in lines)
    places = [(scale_y(line.points[-1][1]), scale_x(line.points[-1][0]), number, line) for number, line in lines]
    ends = sorted((y, last_x if last_x - x < _NEAR else x, number, line) for y, x, number, line in places)
    taken: list[tuple[float, float, float]] = []
    for y, x, _, line in ends:
        left, right = x + 10, x + 10 + width_of(line.name, _LARGE)
        at = max([y, *(other + _APART for first, last, other in taken if first < right and left < last)])
        taken.append((left, right, at))
    low = HEIGHT - _BOTTOM - 2.0
    for place, (left, right, at) in reversed([*enumerate(taken)]):  # none lies on the marks of the axis
        taken[place] = (left, right, min(at, low))
        low = taken[place][2] - _APART if at > low else low
    for (left, _, at), (_, _, number, line) in zip(taken, ends, strict=True):
        kind = "name" if line.is_limit else "tick" if line.is_pale else f"name end {_own(number, line)}"
        out.text(left, at + 4, line.name, kind)


def _ticks_of(series: Sequence[Series], from_zero: bool) -> list[float]:
    """Return marks from at or below the least value to above it and to at or above the largest."""
    ys = [y for line in series for _, y in line.points]
    ys += [y for line in series for pair in (*line.spread, *line.band) for y in pair]
    low, high = min([0.0, *ys] if from_zero else ys), max(ys)
    return ticks(low, high if high > low else low + (abs(low) or 1.0), 5)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten between two numbers: ten at most; where they are few, round numbers between them too."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)

    def marks(*factors: float) -> list[float]:
        return [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]

    fine = marks(1, 2, 5)
    if len(fine) < 4:
        return marks(1, 1.5, 2, 3, 4, 5, 7)
    return fine if len(fine) < 7 else marks(1)[:: 1 + len(powers) // 10]


def _scale(low: float, high: float, begin: float, end: float, log: bool = False) -> Scale:
    """Return what puts a value from `low` to `high` between two places; in the middle where these are one."""

    def place(value: float) -> float:
        first, last, here = (math.log(low), math.log(high), math.log(value)) if log else (low, high, value)
        return begin + ((here - first) / (last - first) if last > first else 0.5) * (end - begin)

    return place


def _kind(number: int, line: Series) -> str:
    if line.is_limit:
        return "line limit"
    return f"fill band {_own(number, line)}" if line.band else f"line {'pale ' * line.is_pale}{_own(number, line)}"


def _own(number: int, line: Series) -> str:
    return _colour(number if line.colour is None else line.colour)


def _line(
    out: Drawing, number: int, line: Series, scale_x: Scale, scale_y: Scale, is_named: bool
) -> None:  # fmt: skip
    if line.band:
        edges = [[(scale_x(x), scale_y(ends[at])) for (x, _), ends in zip(line.points, line.band, strict=True)]
                 for at in (0, 1)]  # fmt: skip
        out.area([*edges[0], *reversed(edges[1])], f"band {_own(number, line)}")
        return
    places = [(scale_x(x), scale_y(y)) for x, y in line.points]
    out.line(places, _kind(number, line))
    if line.is_limit or line.is_pale:
        return
    colour = _own(number, line)
    for (x, _), (low, high) in zip(places, line.spread, strict=False):
        out.line([(x, scale_y(low)), (x, scale_y(high))], f"error {colour}")
    for x, y in places if len(places) <= _MOST_DOTS else places[-1:]:
        out.dot(x, y, 4, colour)
    for (x, y), text in zip(places, line.labels, strict=False):
        is_last = x + 8 + width_of(text, _LARGE) > WIDTH or (is_named and x == places[-1][0] and len(places) > 1)
        out.text(x - 8 if is_last else x + 8, y + 22, text, "tick halo", at="end" if is_last else "start")


def _values(
    out: Drawing, lines: Sequence[Series], scale_x: Scale, ends: tuple[float, float], spell_x: Spell, spell_y: Spell
) -> None:
    """Let the pointer show all values at an x: of each line that which was measured last there or before."""
    xs = sorted({x for line in lines for x, _ in line.points if not line.is_pale} or {x for x, _ in lines[0].points})
    if len(xs) > (most := max(_LEAST_STRIPS, _STRIPS // len(lines))):
        xs = [xs[number * (len(xs) - 1) // (most - 1)] for number in range(most)]
    places = [scale_x(x) for x in xs]
    middles = [(left + right) / 2 for left, right in itertools.pairwise(places)]
    for x, left, right in zip(xs, [places[0] - 8, *middles], [*middles, places[-1] + 8], strict=True):
        told: list[str] = []
        for line in lines:
            at = bisect.bisect_right(line.points, x, key=lambda point: point[0]) - 1
            if at >= 0:
                value = " to ".join(map(spell_y, line.band[at])) if line.band else spell_y(line.points[at][1])
                where = f" at {spell_x(line.points[at][0])}" if not told or line.points[at][0] != x else ""
                told.append(f"{line.name}: {value}{'' if line.band else where}")
        out.strip(left, right, *ends, "\n".join(told))


def stacked_bars(label: str, bars: Mapping[str, Mapping[str, float]], *, spell: Spell) -> Drawing:
    """Return one horizontal bar for each entry, cut into named parts."""
    names = [*dict.fromkeys(itertools.chain.from_iterable(bars.values()))]
    totals = {bar: math.fsum(parts.values()) for bar, parts in bars.items()}
    longest = max([*totals.values(), 1e-12])
    out = _rows(label, list(bars), names)
    width = WIDTH - _NAMES - 74
    for row, (bar, parts) in enumerate(bars.items()):
        y, x = 6 + row * _BAR, float(_NAMES)
        for number, name in enumerate(names):
            if (length := max(0.0, parts.get(name, 0.0)) / longest * width) > 0.05:
                out.box(x, y, length, _BAR - 6, f"fill c{number % 8}", f"{bar}, {name}: {spell(parts[name])}")
                x += length
        out.text(x + 6, y + 15, spell(totals[bar]))
    return out


def compared_bars(
    label: str, values: Mapping[str, float], *, line: float, alike: float, texts: Mapping[str, str],
    less_is_good: bool, chosen: str = "",
) -> Drawing:  # fmt: skip
    """Return a bar from 0 for each entry, beside a line: green is better than it, orange worse, grey within `alike`.

    The `chosen` one's name is bold; `texts` stand at the ends of the bars.
    """
    out = _rows(label, list(values), [], chosen=chosen)
    low, high = min(0.0, *values.values()), max(0.0, *values.values())
    room = 8 + max(width_of(text, _LARGE) for text in texts.values())
    scale = _scale(low, high, _NAMES + (room if low < 0 else 0), WIDTH - room)
    for row, (bar, value) in enumerate(values.items()):
        y, left, right = 6 + row * _BAR, scale(min(0.0, value)), scale(max(0.0, value))
        is_better = (value < line) == less_is_good
        colour = "plain" if abs(value - line) <= alike else f"c{2 if is_better else 5}"
        if right - left > 0.05:
            out.box(left, y, right - left, _BAR - 6, f"fill {colour}", f"{bar}: {texts[bar]}")
        begin = left - room if value < 0 else right
        if not begin < scale(line) < begin + 6 + width_of(texts[bar], _LARGE) or left == right:
            out.line([(scale(line), y - 2), (scale(line), y + _BAR - 2)], "line limit")  # not through its text
        out.text(left - 6 if value < 0 else right + 6, y + 15, texts[bar], at="end" if value < 0 else "start")
    return out


def span_chart(label: str, spans: Sequence[Span], *, spell: Spell, colours: Mapping[str, str] | None = None) -> Drawing:
    """Return rows of spans over one axis of time; `colours`, by kind (others: grey), replace the legend."""
    rows = list(dict.fromkeys(span.row for span in spans))
    kinds = list(dict.fromkeys(span.kind for span in spans))
    low, high = min(span.began for span in spans), max(span.ended for span in spans)
    high = high if high > low else low + 1.0
    out = _rows(label, rows, kinds if colours is None else [], axis=34)
    foot = 6 + _BAR * len(rows)
    scale = _scale(low, high, _NAMES, WIDTH - 20)
    for mark in [mark for mark in ticks(low, high, 5) if low <= mark <= high]:
        out.line([(scale(mark), 4), (scale(mark), foot)], "grid")
        out.text(scale(mark), foot + 18, spell(mark), at="middle")
    for span in spans:
        y, start = 6 + rows.index(span.row) * _BAR, scale(span.began)
        width = max(2.0, scale(span.ended) - start)
        kind = f"c{kinds.index(span.kind) % 8}" if colours is None else colours.get(span.kind, "plain")
        out.box(start, y, width, _BAR - 6, f"fill {kind}", span.text)
        if span.label and width_of(span.label, _LARGE) + 8 < width:
            out.text(start + width / 2, y + 15, span.label, "name" if kind == "plain" else "on", at="middle")
    return out


def _rows(label: str, names: Sequence[str], kinds: Sequence[str], axis: float = 4, chosen: str = "") -> Drawing:
    out = Drawing(label, 6 + _BAR * len(names) + axis)
    for row, name in enumerate(names):
        kind, y = "name" if name == chosen else "tick", row * _BAR + 21
        out.text(_NAMES - 8, y, cut(name, _NAMES - 10, _LARGE), kind, at="end", bold=name == chosen)
    _legend(out, [(kind, f"fill c{number % 8}") for number, kind in enumerate(kinds)])
    return out


def _legend(out: Drawing, entries: Sequence[tuple[str, str]]) -> None:
    """Add names and what they look like, one after another in lines below the drawing; nothing for a single one."""
    if len(entries) < 2:
        return
    x, y = 10.0, out.height + 15
    for name, kind in entries:
        shown = cut(name, WIDTH - 50, _LARGE)
        step = 36 + width_of(shown, _LARGE)
        if x > 10 and x + step > WIDTH:
            x, y = 10.0, y + _LEGEND
        if kind.startswith("fill"):
            out.box(x + 4, y - 10, 11, 11, kind)
        else:
            out.line([(x, y - 4), (x + 18, y - 4)], kind)
        out.text(x + 24, y, shown, "name")
        x += step
    out.height = y + 5


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from at or below `low` to at or above `high`, about `most` of them."""
    span = high - low
    if not span > 0:
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _colour(number: int) -> str:
    """Return the class of a line; the ninth has the first's colour, dashed."""
    return f"c{number % 8}" + (" dash" if number >= 8 else "")


def _spread(marks: Sequence[float], xs: Sequence[float], scale: Scale, spell: Spell) -> list[float]:
    """Return marks within the axis whose labels do not touch."""
    kept: list[float] = []
    for mark in marks:
        apart = (width_of(spell(mark), _LARGE) + width_of(spell(kept[-1]), _LARGE)) / 2 + 7 if kept else 0.0
        if xs[0] <= mark <= xs[-1] and (not kept or scale(mark) - scale(kept[-1]) > apart):
            kept.append(mark)
    return kept
