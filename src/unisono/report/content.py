"""What a report says, as plain values: sections of sentences, tables and charts (pure).

The files ``*_section.py`` make sections of what was measured; `page` shows them as HTML, `picture` their charts as SVG.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from unisono.report.charts import Series, Spell, line_chart, stacked_bars, thin
from unisono.report.svg import Drawing

_MOST_VALUES = 24


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of text.

    Attributes:
        title: Its caption.
        head: Names of the columns.
        rows: Cells; the first of a row names it.
        numeric: Columns set flush right.
        mono: Columns in a fixed-width font.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()
    mono: frozenset[int] = frozenset()


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart and its values.

    Attributes:
        title: Above it.
        drawing: From `charts`.
        values: The same as a table.
        note: Below it.
    """

    title: str
    drawing: Drawing
    values: Table
    note: str = ""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """A sentence worth reading; `tone` is ``good``, ``alarm`` or empty."""

    text: str
    tone: str = ""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page.

    Attributes:
        title: Its heading.
        lines: Below it.
        findings: What the numbers say.
        tables: Always shown.
        charts: Two in a row where there is room.
        folded: Tables to be opened.
    """

    title: str
    lines: Sequence[str] = ()
    findings: Sequence[Remark] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    folded: Sequence[Table] = ()


def line_view(
    title: str, series: Sequence[Series], x_name: str, spell_x: Spell, spell_y: Spell, note: str = "", **how: Any
) -> Chart:
    """Return lines and their values: a row for each x, a column for each line; long ones thinned.

    Args:
        title: Of both.
        series: At least one point in all.
        x_name: What x is.
        spell_x: How values of x are written.
        spell_y: How values of y are written.
        note: Below the chart.
        how: More of `line_chart`'s arguments.
    """
    xs = sorted({x for line in series for x, _ in line.points})
    if len(xs) > _MOST_VALUES:
        xs = [xs[number * (len(xs) - 1) // (_MOST_VALUES - 1)] for number in range(_MOST_VALUES)]
    found = [dict(line.points) for line in series]
    rows = [[spell_x(x), *("" if x not in one else spell_y(one[x]) for one in found)] for x in xs]
    head = [x_name, *(line.name for line in series)]
    values = Table(title=title, head=head, rows=rows, numeric=frozenset(range(len(head))))
    label = f"{title} over {x_name}"
    drawing = line_chart(label, series, x_label=x_name, spell_x=spell_x, spell_y=spell_y, **how)
    return Chart(title=title, drawing=drawing, values=values, note=note)


def bar_view(title: str, bars: Mapping[str, Mapping[str, float]], name: str, spell: Spell, note: str = "") -> Chart:
    """Return bars, cut into parts, and their values: a row for each bar, whose first cell is headed `name`."""
    parts = list(next(iter(bars.values())))
    rows = [[bar, *(spell(found[part]) for part in parts)] for bar, found in bars.items()]
    values = Table(title=title, head=[name, *parts], rows=rows, numeric=frozenset(range(1, 1 + len(parts))))
    return Chart(title=title, drawing=stacked_bars(title, bars, spell=spell), values=values, note=note)


def thinned(points: Sequence[tuple[float, float]], num_sources: int) -> list[tuple[float, float]]:
    """Return as many points as a page of so many sources has room for."""
    return thin(points, max(40, 160 // num_sources))
