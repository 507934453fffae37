"""Drawings as SVG text: shapes and lines of text on a sheet (pure; plain values in, text out).

Everything that is shown is escaped here. Colours are classes, which `STYLE` fills: on a page with what light, dark and
paper need, in a picture with `LIGHT`, or with `DARK` where the reader asks for dark pages.
"""

import unicodedata
from collections.abc import Sequence
from html import escape
from typing import final

WIDTH = 520
"""Of a chart in pixels."""
LIGHT = {
    "bg": "#ffffff", "ink": "#1c1c1e", "faint": "#5f6368", "rule": "#d9d9de", "card": "#f6f6f8", "alarm": "#b00020",
    "good": "#00694a", "c0": "#0072b2", "c1": "#c07a00", "c2": "#008a66", "c3": "#b04d8a", "c4": "#2a86bd",
    "c5": "#c94f00", "c6": "#7c5e28", "c7": "#6a51a3",
}  # fmt: skip
"""Colours by name; c0 to c7, one for each line or rank, are told apart by colour-blind readers too."""
DARK = {
    "bg": "#161618", "ink": "#ececee", "faint": "#a4a7ad", "rule": "#3a3a3f", "card": "#202024", "alarm": "#ff8a9a",
    "good": "#5ed4ab", "c0": "#56b4e9", "c1": "#f0ad3d", "c2": "#3cc99c", "c3": "#e08cc2", "c4": "#7cc8f5",
    "c5": "#ff8c4d", "c6": "#c9a566", "c7": "#a893e0",
}  # fmt: skip
"""The same colours on a dark ground."""
DARK_DRAWING = "<style>@media (prefers-color-scheme:dark){svg{filter:invert(.92) hue-rotate(180deg)}}</style>"
"""For a picture whose colours stand in its shapes: on a dark page lightness is turned round, and hues stay."""
STYLE = (
    ".chart text{fill:var(--ink);font-size:12px}.chart .tick,.chart .axis{fill:var(--faint)}.chart .alarm{fill:"
    "var(--alarm)}.grid{stroke:var(--rule);stroke-width:1}.line{fill:none;stroke-width:2;stroke-linejoin:round}"
    ".error{stroke-width:2}.pale{stroke-width:1;stroke-opacity:.4}"
    ".band{fill-opacity:.18;stroke:none}.dash{stroke-dasharray:7 3}.dots{stroke-dasharray:2 3}"
    ".limit{stroke:var(--faint);stroke-dasharray:6 4;stroke-width:1.5}"
    ".chart .on{fill:var(--bg);font-weight:600;text-anchor:middle}.none{fill:var(--card)}"
    ".old,.new{fill:none;stroke:var(--rule);stroke-width:1}"
    ".none,.chart rect.fill{stroke:var(--bg);stroke-width:.5}.new{stroke:var(--ink);stroke-width:2.4}"
    ".tip{display:none;pointer-events:none;font-weight:600;paint-order:stroke;stroke:var(--card);stroke-width:5px;"
    "stroke-linejoin:round}.pt{outline:none}.pt:hover .tip,.pt:focus .tip{display:block}"
    ""
    ".hit{fill:transparent}.pt:hover .hit,.pt:focus .hit{fill:var(--faint);fill-opacity:.25}"
    ".pt:hover .fill,.pt:focus .fill{stroke:var(--ink);stroke-width:1.5}"
    ".chart .fill.plain{fill:var(--rule)}.chart .fill.bad{fill:var(--alarm)}"
    ".chart .end{font-weight:600}.chart .end,.halo{paint-order:stroke;stroke:var(--bg);stroke-width:3px;"
    "stroke-linejoin:round}figure .chart .end,figure .halo{stroke:var(--card)}"
    + "".join(
        f".line.c{n},.error.c{n}{{stroke:var(--c{n})}}.band.c{n},.dot.c{n},.chart .fill.c{n},.chart .end.c{n}"
        f"{{fill:var(--c{n})}}"
        for n in range(8)
    )
)
"""What the classes of a drawing look like."""

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@final
class Drawing:
    """Shapes on a sheet; the origin is the upper left corner, lengths are pixels."""

    def __init__(self, label: str, height: float, width: float = WIDTH) -> None:
        self.label, self.height, self.width = label, height, width
        self._parts: list[str] = []

    def text(
        self, x: float, y: float, words: object, kind: str = "tick", *, at: str = "start", size: float = 0,
        bold: bool = False,
    ) -> None:  # fmt: skip
        """Write one line; y is its base line. A size of 0 is that of a chart's text."""
        style = f"font-size:{size:g}px;" * bool(size) + "font-weight:600" * bold
        how = f' style="{style}"' if style else ""
        anchor = f' text-anchor="{at}"' if at != "start" else ""
        place = f'class="{kind}" x="{x:.1f}" y="{y:.1f}"{anchor}'
        self._parts.append(f"<text {place}{how}>{text_of(words)}</text>")

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw straight lines from point to point."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline class="{kind}" points="{path}"/>')

    def box(self, x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> None:
        """Draw a rectangle from its upper left corner; `tip` is shown under the pointer."""
        shape = f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        self._parts.append(self._hover(shape, tip, min(x, self.width - 220), y) if tip else shape)

    def dot(self, x: float, y: float, radius: float, kind: str) -> None:
        """Draw a point."""
        self._parts.append(f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>')

    def area(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Fill what lies within straight lines from point to point."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polygon class="{kind}" points="{path}"/>')

    def strip(self, left: float, right: float, top: float, bottom: float, tip: str) -> None:
        """Put an unseen column on the drawing, which shows itself and `tip`, at its upper end, under the pointer."""
        shape = (
            f'<rect class="hit" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"/>'
        )
        self._parts.append(self._hover(shape, tip, (left + right) / 2, top + 12))

    def put(self, other: "Drawing", x: float, y: float) -> None:
        """Put another drawing on this one."""
        self._parts.append(other.svg(f'x="{x:g}" y="{y:g}" width="{other.width:g}" height="{other.height:g}" '))

    def svg(self, attributes: str = "") -> str:
        """Return the element; `attributes` end with a blank."""
        head = f'class="chart" viewBox="0 0 {self.width:g} {self.height:g}" role="img"'
        return f'<svg {attributes}{head} aria-label="{text_of(self.label)}">{"".join(self._parts)}</svg>'

    def _hover(self, shape: str, text: str, x: float, y: float) -> str:
        anchor = "start" if x < self.width * 0.4 else "end" if x > self.width * 0.6 else "middle"
        place = f'x="{x:.1f}" y="{max(14.0, y):.1f}" text-anchor="{anchor}"'
        first, *more = map(text_of, text.split("\n"))
        lines = first + "".join(f'<tspan x="{x:.1f}" dy="15">{line}</tspan>' for line in more)
        return f'<g class="pt" tabindex="-1">{shape}<text class="tip" {place}>{lines}</text></g>'


def text_of(value: object) -> str:
    """Return text that is safe in HTML and SVG: escaped, with a box for what cannot be printed."""
    shown = "".join(char if char.isprintable() or char == "\n" else "\N{WHITE SQUARE}" for char in str(value))
    return escape(shown.encode("utf-8", "replace").decode(), quote=True)


def width_of(text: str, size: float = 12) -> float:
    """Return about how wide a line is, rather too much than too little: fonts differ from machine to machine."""
    ems = {"narrow": 0.36, "wide": 1.0, "other": 0.62}

    def kind(char: str) -> str:
        if char in "MWmw@%" or unicodedata.east_asian_width(char) in "WF" or not char.isprintable():
            return "wide"
        return "narrow" if char in "ijlft.,:;'|! ()[]" else "other"

    return size * sum(0.75 if char.isupper() and char not in "MW" else ems[kind(char)] for char in text)


def cut(text: str, width: float, size: float = 12) -> str:
    """Return `text` on one line, cut where it would be wider than `width`."""
    line = " ".join(text[:1000].split())
    if width_of(line, size) <= width:
        return line
    while line and width_of(line + _ELLIPSIS, size) > width:
        line = line[:-1]
    return line + _ELLIPSIS
