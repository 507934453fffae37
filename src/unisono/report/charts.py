"""Charts as SVG text: lines with error bars, stacked bars, spans of time (pure; plain values in, text out).

Everything that is shown is escaped here. Colours are classes, which the page's style sheet fills for light, dark and
paper. A point shows its value when the pointer is on it or it is tapped; every chart has its values as a table too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import final

WIDTH, HEIGHT = 520, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 42
_BAR = 26

Spell = Callable[[float], str]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line.

    Attributes:
        name: Of the line.
        points: (x, y), ascending in x.
        spread: For each point (low, high), for error bars; empty where there is none.
        is_limit: A dashed line without points, such as the ideal.
    """

    name: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[tuple[float, float]] = ()
    is_limit: bool = False


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Something that lasted.

    Attributes:
        row: Name of the row it stands in.
        began: On the chart's axis.
        ended: Not before `began`.
        kind: Names its colour in the legend.
        text: Shown on hover.
    """

    row: str
    began: float
    ended: float
    kind: str
    text: str


def text_of(value: object) -> str:
    """Return text that is safe in HTML and SVG: escaped, with a box for what cannot be printed."""
    shown = "".join(char if char.isprintable() or char == "\n" else "\N{WHITE SQUARE}" for char in str(value))
    return escape(shown.encode("utf-8", "replace").decode(), quote=True)


def thin(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return at most `most` points: of each stretch the one farthest from its neighbours' mean, and both ends."""
    finite = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if len(finite) <= most or most < 3:
        return finite[:most] if most < 3 else finite
    kept = [finite[0]]
    inner, buckets = finite[1:-1], most - 2
    for number in range(buckets):
        part = inner[number * len(inner) // buckets : (number + 1) * len(inner) // buckets]
        mean = math.fsum(y for _, y in part) / len(part)
        kept.append(max(part, key=lambda point: abs(point[1] - mean)))
    return [*kept, finite[-1]]


def line_chart(
    label: str, series: Sequence[Series], *, x_label: str, spell_x: Spell, spell_y: Spell, log_x: bool = False,
    from_zero: bool = True, ticks_at_points: bool = False,
) -> str:  # fmt: skip
    """Return lines over one pair of axes.

    Args:
        label: What the chart shows, for screen readers.
        series: At least one point in all.
        x_label: Below the axis.
        spell_x: How values of x are written.
        spell_y: How values of y are written.
        log_x: A logarithmic axis of x; all x above 0.
        from_zero: The axis of y begins at 0.
        ticks_at_points: One tick for each x there is, instead of round numbers.
    """
    xs = sorted({x for line in series for x, _ in line.points})
    ys = [y for line in series for _, y in line.points] + [y for line in series for pair in line.spread for y in pair]
    low, high = (min([0.0, *ys]) if from_zero else min(ys)), max(ys)
    high = high if high > low else low + (abs(low) or 1.0)
    marks = ticks(low, high, 5)
    low, high = min(low, marks[0]), max(high, marks[-1])

    def scale_x(x: float) -> float:
        first, last, here = (math.log(xs[0]), math.log(xs[-1]), math.log(x)) if log_x else (xs[0], xs[-1], x)
        share = (here - first) / (last - first) if last > first else 0.5
        return _LEFT + 8 + share * (WIDTH - _LEFT - _RIGHT - 16)

    def scale_y(y: float) -> float:
        return HEIGHT - _BOTTOM - (y - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    out = [_open(label, HEIGHT)]
    for mark in marks:
        y = scale_y(mark)
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text_of(spell_y(mark))}</text>'
        )
    for x in _spread(xs if ticks_at_points or log_x else ticks(xs[0], xs[-1], 6), xs, scale_x):
        place, low_end = f"{scale_x(x):.1f}", HEIGHT - _BOTTOM + 16
        out.append(f'<text class="tick" x="{place}" y="{low_end}" text-anchor="middle">{text_of(spell_x(x))}</text>')
    middle = (WIDTH + _LEFT - _RIGHT) / 2
    out.append(f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{text_of(x_label)}</text>')
    for number, line in enumerate(series):
        out += _line(number, line, scale_x, scale_y, spell_x, spell_y)
    return "".join([*out, "</svg>", _legend([(line.name, "limit" if line.is_limit else _colour(number))
                                             for number, line in enumerate(series)])])  # fmt: skip


def _line(
    number: int, line: Series, scale_x: Callable[[float], float], scale_y: Callable[[float], float], spell_x: Spell,
    spell_y: Spell,
) -> list[str]:  # fmt: skip
    path = " ".join(f"{scale_x(x):.1f},{scale_y(y):.1f}" for x, y in line.points)
    if line.is_limit:
        return [f'<polyline class="line limit" points="{path}"/>']
    colour = _colour(number)
    out = [f'<polyline class="line {colour}" points="{path}"/>']
    for (x, _), (low, high) in zip(line.points, line.spread, strict=False):
        place = f"{scale_x(x):.1f}"
        ends = f'y1="{scale_y(low):.1f}" y2="{scale_y(high):.1f}"'
        out.append(f'<line class="error {colour}" x1="{place}" x2="{place}" {ends}/>')
    radius = 4 if len(line.points) <= 24 else 1.5
    for x, y in line.points:
        text = f"{line.name}: {spell_y(y)} at {spell_x(x)}"
        out.append(_point(scale_x(x), scale_y(y), radius, colour, text))
    return out


def stacked_bars(label: str, bars: Mapping[str, Mapping[str, float]], *, spell: Spell) -> str:
    """Return one horizontal bar for each entry, cut into named parts.

    Args:
        label: What the chart shows, for screen readers.
        bars: For each bar's name, its parts by name; all with the same names.
        spell: How values are written.
    """
    names = list(dict.fromkeys(name for parts in bars.values() for name in parts))
    totals = {bar: math.fsum(parts.values()) for bar, parts in bars.items()}
    longest = max([*totals.values(), 1e-12])
    left, height = 110, _BAR * len(bars) + 30
    width = WIDTH - left - 74
    out = [_open(label, height)]
    for row, (bar, parts) in enumerate(bars.items()):
        y, x = 6 + row * _BAR, float(left)
        out.append(f'<text class="tick" x="{left - 8}" y="{y + 15}" text-anchor="end">{text_of(_cut(bar, 15))}</text>')
        for number, name in enumerate(names):
            length = max(0.0, parts.get(name, 0.0)) / longest * width
            if length > 0.05:
                text = f"{bar}, {name}: {spell(parts[name])}"
                shape = (
                    f'<rect class="fill c{number % 8}" x="{x:.1f}" y="{y}" width="{length:.1f}" height="{_BAR - 6}"/>'
                )
                out.append(_hover(shape, text, min(x, WIDTH - 200), y))
                x += length
        out.append(f'<text class="tick" x="{x + 6:.1f}" y="{y + 15}">{text_of(spell(totals[bar]))}</text>')
    return "".join([*out, "</svg>", _legend([(name, f"c{number % 8}") for number, name in enumerate(names)])])


def span_chart(label: str, spans: Sequence[Span], *, spell: Spell) -> str:
    """Return rows of spans over one axis of time.

    Args:
        label: What the chart shows, for screen readers.
        spans: At least one.
        spell: How places on the axis are written.
    """
    rows = list(dict.fromkeys(span.row for span in spans))
    kinds = list(dict.fromkeys(span.kind for span in spans))
    low, high = min(span.began for span in spans), max(span.ended for span in spans)
    high = high if high > low else low + 1.0
    left, height = 110, _BAR * len(rows) + 40
    width = WIDTH - left - 20

    def scale(x: float) -> float:
        return left + (x - low) / (high - low) * width

    out = [_open(label, height)]
    for mark in [mark for mark in ticks(low, high, 5) if low <= mark <= high]:
        x = f"{scale(mark):.1f}"
        out.append(f'<line class="grid" x1="{x}" x2="{x}" y1="4" y2="{height - 28}"/>')
        out.append(f'<text class="tick" x="{x}" y="{height - 12}" text-anchor="middle">{text_of(spell(mark))}</text>')
    for row, name in enumerate(rows):
        place = f'x="{left - 8}" y="{row * _BAR + 21}" text-anchor="end"'
        out.append(f'<text class="tick" {place}>{text_of(_cut(name, 15))}</text>')
    for span in spans:
        y, start = 6 + rows.index(span.row) * _BAR, scale(span.began)
        length, colour = max(2.0, scale(span.ended) - start), kinds.index(span.kind) % 8
        shape = f'<rect class="fill c{colour}" x="{start:.1f}" y="{y}" width="{length:.1f}" height="{_BAR - 6}"/>'
        out.append(_hover(shape, span.text, min(start, WIDTH - 240), y))
    return "".join([*out, "</svg>", _legend([(kind, f"c{number % 8}") for number, kind in enumerate(kinds)])])


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


def _spread(marks: Sequence[float], xs: Sequence[float], scale: Callable[[float], float]) -> list[float]:
    """Return marks within the axis whose labels do not touch."""
    kept: list[float] = []
    for mark in marks:
        if xs[0] <= mark <= xs[-1] and (not kept or scale(mark) - scale(kept[-1]) > 46):
            kept.append(mark)
    return kept


def _open(label: str, height: float) -> str:
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{text_of(label)}">'


def _point(x: float, y: float, radius: float, colour: str, text: str) -> str:
    shape = f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/><circle class="hit" cx="{x:.1f}" ' \
            f'cy="{y:.1f}" r="7"/>'  # fmt: skip
    return _hover(shape, text, x, y - 10)


def _hover(shape: str, text: str, x: float, y: float) -> str:
    anchor = "start" if x < WIDTH * 0.4 else "end" if x > WIDTH * 0.6 else "middle"
    return (
        f'<g class="pt" tabindex="-1">{shape}<text class="tip" x="{x:.1f}" y="{max(14.0, y):.1f}" '
        f'text-anchor="{anchor}">{text_of(text)}</text></g>'
    )


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    if len(entries) < 2:
        return ""
    items = "".join(f'<li><span class="key {colour}"></span>{text_of(_cut(name, 60))}</li>' for name, colour in entries)
    return f'<ul class="legend">{items}</ul>'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
