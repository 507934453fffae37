"""Pictures of measured collectives: time over message size, with the limit that memory sets.

In: rows of plain values, as ``unisono bench collectives --json`` prints them. Out: a PNG file. Imports no torch.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.errors import ConfigError
from unisono.report.canvas import COLOURS, FAINT, FONT, INK, RULE, blank, printable, save
from unisono.system.words import spell_bytes, spell_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIMIT = "memcpy"
"""The collective that is drawn as a limit in every panel: each rank must at least write its result once."""

_PANEL_HEIGHT, _HEAD = 430, 116
_TEXT: dict[str, Any] = {"family": FONT, "parse_math": False}
_MARKERS = ("o", "s", "^", "D", "v", "P")

Row = Mapping[str, Any]


def draw_timings(rows: Sequence[Row], path: str | Path) -> None:
    """Draw the median time of each transport over the message size, log-log, a panel for each collective.

    The middle half of the repetitions is shaded. Collectives without a message, such as a barrier, are levels.

    Args:
        rows: Each with ``ranks``, ``collective``, ``transport``, ``bytes``, ``median_s``, ``q1_s`` and ``q3_s``.
        path: File to write; its directory must exist.

    Raises:
        ConfigError: No rows but the limit, or the file cannot be written.
    """
    panels = list(dict.fromkeys((row["ranks"], row["collective"]) for row in rows if row["collective"] != LIMIT))
    if not panels:
        raise ConfigError("expected measured collectives to draw, got none.")
    transports = list(dict.fromkeys(row["transport"] for row in rows if row["collective"] != LIMIT))
    columns = min(2, len(panels))
    num_rows = -(-len(panels) // columns)
    height = _HEAD + num_rows * _PANEL_HEIGHT
    # One scale for all panels, so that they can be compared by eye.
    low, high = min(row["q1_s"] for row in rows) / 1.5, max(row["q3_s"] for row in rows) * 1.5
    figure = blank(height)
    figure.text(0.025, 1 - 34 / height, "Collectives: time over message size", size=17, weight="bold", **_TEXT)
    explained = "Lines: median. Shaded: middle half of the repetitions. tree_all_reduce: the sum of the exact step."
    figure.text(0.025, 1 - 92 / height, explained, size=11.5, color=INK, **_TEXT)
    handles: dict[str, Any] = {}
    for number, (ranks, collective) in enumerate(panels):
        line, column = divmod(number, columns)
        # Left, bottom, width, height as fractions of the figure.
        place = (
            (0.085 + column * 0.49) if columns == 2 else 0.085,
            1 - (_HEAD + (line + 1) * _PANEL_HEIGHT - 62) / height,
            0.40 if columns == 2 else 0.88,
            (_PANEL_HEIGHT - 110) / height,
        )
        axes = figure.add_axes(place)
        found = [row for row in rows if row["ranks"] == ranks and row["collective"] == collective]
        limit = [row for row in rows if row["ranks"] == ranks and row["collective"] == LIMIT]
        name = printable(str(collective), 12.5, 320)
        axes.set_title(f"{name}, {ranks} ranks", loc="left", size=12.5, weight="bold", color=INK, **_TEXT)
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        _draw_panel(axes, found, limit, transports, handles)
    shown = list(handles)
    legend = figure.legend(
        [handles[name] for name in shown], [printable(name, 11.5, 180) for name in shown], loc="upper left",
        bbox_to_anchor=(0.02, 1 - 50 / height), ncols=len(shown), frameon=False, fontsize=11.5, borderaxespad=0,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    save(figure, path)


def _draw_panel(
    axes: "Axes", rows: Sequence[Row], limit: Sequence[Row], transports: Sequence[str], handles: dict[str, Any]
) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    has_sizes = any(row["bytes"] for row in rows)
    if has_sizes:
        axes.set_xscale("log", base=2)
    for number, transport in enumerate(transports):
        found = sorted((row for row in rows if row["transport"] == transport), key=lambda row: row["bytes"])
        if not found:
            continue
        colour, label = COLOURS[number % len(COLOURS)], transport
        median, low, high = ([row[key] for row in found] for key in ("median_s", "q1_s", "q3_s"))
        if has_sizes:
            xs = [row["bytes"] for row in found]
            axes.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)
            marker = _MARKERS[number % len(_MARKERS)]
            (handles[label],) = axes.plot(xs, median, color=colour, marker=marker, markersize=6, linewidth=2)
        else:
            axes.plot([number, number], [low[0], high[0]], color=colour, alpha=0.3, linewidth=12, solid_capstyle="butt")
            (dot,) = axes.plot(number, median[0], color=colour, marker=_MARKERS[number % len(_MARKERS)], markersize=8)
            axes.text(number + 0.12, median[0], spell_seconds(median[0]), va="center", size=11, color=INK, **_TEXT)
            handles.setdefault(label, dot)
    if limit and has_sizes:
        ordered = sorted(limit, key=lambda row: row["bytes"])
        xs, ys = [row["bytes"] for row in ordered], [row["median_s"] for row in ordered]
        (handles["memcpy (limit)"],) = axes.plot(xs, ys, color=FAINT, linestyle=(0, (5, 2)), linewidth=1.8)
    axes.grid(visible=True, which="major", color=RULE, alpha=0.5, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: spell_seconds(seconds)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=10.5)
    axes.minorticks_off()
    if has_sizes:
        axes.set_xticks(_spread(sorted({row["bytes"] for row in rows})))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: spell_bytes(round(size))))
        axes.set_xlabel("buffer", size=11, **_TEXT)
    else:
        axes.set_xticks(range(len(transports)), [printable(name, 10.5, 110) for name in transports], parse_math=False)
        axes.set_xlim(-0.5, len(transports) - 0.3)
        axes.set_xlabel("no message", size=11, **_TEXT)


def _spread(sizes: Sequence[int]) -> list[int]:
    """Return those sizes whose labels do not touch on a logarithmic axis."""
    kept = list(sizes[:1])
    for size in sizes[1:]:
        if math.log(size / kept[-1]) > math.log(sizes[-1] / sizes[0]) / 7:
            kept.append(size)
    return kept
