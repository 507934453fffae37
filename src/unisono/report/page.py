"""One self-contained HTML page from runs, scaling studies and forecasts.

In: paths of results. Out: a file that needs nothing else: no script, no font, no picture from anywhere. Text is escaped
by Jinja's autoescape, charts by `svg`; a content security policy forbids everything but the page's own style sheet.
Reads files only; imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any, final

from unisono.errors import ConfigError
from unisono.report.charts import Series, thin
from unisono.system.files import check_place, write_whole

MOST_SOURCES = 8
MOST_BYTES = 1_000_000
MARK = 'name="generator" content="unisono'
"""By which a page of ours is known."""


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
        svg: From `svg`, escaped there.
        values: The same as a table.
        note: Below it.
    """

    title: str
    svg: str
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
    folded: Sequence[Table] = field(default=())


def values_of(title: str, x_name: str, series: Sequence[Series], spell_x: Any, spell_y: Any, most: int = 24) -> Table:
    """Return the table of a line chart: a row for each x, a column for each line; long ones thinned."""
    xs = sorted({x for line in series for x, _ in line.points})
    if len(xs) > most:
        xs = [xs[number * (len(xs) - 1) // (most - 1)] for number in range(most)]
    found = [dict(line.points) for line in series]
    rows = [[spell_x(x), *("" if x not in one else spell_y(one[x]) for one in found)] for x in xs]
    head = [x_name, *(line.name for line in series)]
    return Table(title=title, head=head, rows=rows, numeric=frozenset(range(len(head))))


def thinned(points: Sequence[tuple[float, float]], num_sources: int) -> list[tuple[float, float]]:
    """Return as many points as a page of so many sources has room for."""
    return thin(points, max(40, 160 // num_sources))


def render(title: str, sections: Sequence[Section]) -> str:
    """Return the page.

    Raises:
        ConfigError: It would have more than `MOST_BYTES`.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_shown)
    template = environment.from_string(resources.files("unisono.report").joinpath("page.html").read_text())
    ready = [
        {
            "title": section.title, "lines": section.lines, "findings": section.findings, "tables": section.tables,
            "folded": section.folded,
            "charts": [{"title": chart.title, "svg": Markup(chart.svg), "table": chart.values, "note": chart.note}
                       for chart in section.charts],
        }
        for section in sections
    ]  # fmt: skip
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = template.render(title=title, sections=ready, version=metadata.version("unisono"), written=written)
    size = len(page.encode())
    if size > MOST_BYTES:
        raise ConfigError(f"expected a page of at most {MOST_BYTES} bytes, got {size}. Hint: report fewer at once.")
    return page


def write_page(sources: Sequence[Path], out: Path) -> None:
    """Write the page of runs, scaling studies and forecasts.

    Args:
        sources: Run directories, files of ``unisono bench scaling`` and ``unisono forecast``, or directories with one.
        out: The file; a page of ours that is there is replaced.

    Raises:
        ConfigError: A source is none of these, damaged, of another version, or cannot be compared with the others; the
            file cannot be written, or holds something else. Nothing is written then.
    """
    from unisono.report.sources import sections_of

    check_place(out, (MARK,))
    title, sections = sections_of(sources)
    write_whole(out, render(title, sections).encode())


def _shown(value: Any) -> Any:
    """Return text without what cannot be printed or encoded; markup as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    text = "".join(char if char.isprintable() else " " if char in "\n\t" else "\N{WHITE SQUARE}" for char in value)
    return text.encode("utf-8", "replace").decode()
