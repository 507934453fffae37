"""A picture of a section's charts: one SVG file, which browsers, documents and editors show."""

import re
from collections.abc import Mapping
from pathlib import Path

from unisono.errors import ConfigError
from unisono.report.content import Chart, Section
from unisono.report.svg import DARK, LIGHT, STYLE, WIDTH, Drawing, cut, width_of
from unisono.system.files import write_whole

MARK = "<!-- unisono -->"
"""By which a picture of ours is known."""

# Titles are bold: they are cut as if they were a fifth larger.
_EDGE, _GAP, _TITLE, _LINE = 8, 32, 28, 21
_HEAD, _BOLD, _TEXT = 21, 17, 16
_MOST_IN_A_COLUMN = 4


def _style(colours: Mapping[str, str]) -> str:
    """Return the style with its colours written out: not every viewer knows variables."""
    rules = f".ground{{fill:var(--bg)}}{STYLE}".replace("font-size:12px", f"font-size:{_TEXT}px")
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], rules)


_STYLE = f"{_style(LIGHT)}@media (prefers-color-scheme:dark){{{_style(DARK)}}}"


def draw_section(section: Section, path: str | Path, most: int | None = None) -> None:
    """Draw a section's title, lines and first charts, each below what it shows.

    Up to four stand below each other, so that 370 pixels, a phone, show their words 11 high; more of them two in a row.
    """
    charts = section.charts[:most]
    columns = 1 if len(charts) <= _MOST_IN_A_COLUMN else 2
    width = columns * WIDTH + (columns - 1) * _GAP
    rows = [charts[at : at + columns] for at in range(0, len(charts), columns)]
    # What a row shows takes as many lines above each of its charts as the longest one needs.
    deep = [_LINE * max(len(wrapped(chart.finding)) for chart in row) for row in rows]
    heights = [max(_height(chart) for chart in row) + _GAP + more for row, more in zip(rows, deep, strict=True)]
    title = wrapped(section.title, width, 1.2 * _HEAD)
    told = [part for line in section.lines for part in wrapped(line, width)]
    begin = 30 + 26 * (len(title) - 1)
    top = begin + 30.0 + _LINE * len(told)
    sheet = Drawing(section.title, top + sum(heights), width + 2 * _EDGE)
    for number, line in enumerate(title):
        sheet.text(_EDGE, 30 + 26 * number, cut(line, width, 1.2 * _HEAD), "name", size=_HEAD, bold=True)
    for number, line in enumerate(told):
        sheet.text(_EDGE, begin + 26 + _LINE * number, cut(line, width, _TEXT), size=_TEXT)
    for row, height, more in zip(rows, heights, deep, strict=True):
        for number, chart in enumerate(row):
            left = _EDGE + number * (WIDTH + _GAP)
            sheet.text(left, top + 14, cut(chart.title, WIDTH, 1.2 * _BOLD), "name", size=_BOLD, bold=True)
            for place, line in enumerate(wrapped(chart.finding), start=1):
                sheet.text(left, top + 14 + _LINE * place, cut(line, WIDTH, _TEXT), "name", size=_TEXT)
            sheet.put(chart.drawing, left, top + _TITLE + more)
            if chart.note:
                sheet.text(left, top + _height(chart) + more - 4, cut(chart.note, WIDTH, _TEXT))
        top += height
    save(sheet, path)


def wrapped(text: str, width: float = WIDTH, size: float = _TEXT) -> list[str]:
    """Return a sentence in lines of a width: usually that of a chart."""
    lines: list[str] = []
    for word in text.split():
        if lines and width_of(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _height(chart: Chart) -> float:
    return _TITLE + chart.drawing.height + (24 if chart.note else 0)


def save(drawing: Drawing, path: str | Path) -> None:
    """Write a drawing; the same drawing gives the same bytes."""
    size = f'width="{drawing.width:g}" height="{drawing.height:g}"'
    head = f'xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, \'DejaVu Sans\', sans-serif" '
    ground = f'{MARK}<style>{_STYLE}</style><rect class="ground" {size} fill="{LIGHT["bg"]}"/>'
    start, _, rest = drawing.svg(head).partition(">")
    try:
        write_whole(Path(path), f"{start}>{ground}{rest}\n".encode())
    except ValueError as error:
        raise ConfigError(f"expected a file that can be written, got {str(path)!r}: {error}.") from error
