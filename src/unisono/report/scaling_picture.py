"""A picture of measured scaling: time over workers with the ideal line, speed-up, and where a step goes.

In: rows of `unisono.scaling.study`. Out: a PNG file. Imports no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.errors import ConfigError
from unisono.report.canvas import ALARM, COLOURS, FAINT, FONT, INK, RULE, blank, printable, save
from unisono.scaling.study import STEP_PHASES, Row
from unisono.system.words import spell_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 500
_TEXT: dict[str, Any] = {"family": FONT, "parse_math": False}


def draw_scaling(rows: Sequence[Row], path: str | Path, *, title: str, weak: bool, note: str = "") -> None:
    """Draw three panels: seconds of a step, speed-up, phases.

    Args:
        rows: Ascending in workers.
        path: File to write; its directory must exist.
        title: Of the picture.
        weak: Whether the batch grew with the workers, so that the ideal time is constant.
        note: A line below the title: machine, cores, repetitions.

    Raises:
        ConfigError: No rows, or the file cannot be written.
    """
    if not rows:
        raise ConfigError("expected measured rows to draw, got none.")
    figure = blank(_HEIGHT)
    figure.text(0.02, 1 - 34 / _HEIGHT, printable(title, 17), size=17, weight="bold", color=INK, **_TEXT)
    figure.text(0.02, 1 - 58 / _HEIGHT, printable(note, 11), size=11, color=FAINT, **_TEXT)
    xs = [row.workers for row in rows]
    first = rows[0]
    ideal = [first.step_s * (1.0 if weak else first.workers / x) for x in xs]
    axes = figure.add_axes((0.065, 0.19, 0.25, 0.56))
    below = [row.step_s - row.low_s for row in rows]
    above = [row.high_s - row.step_s for row in rows]
    axes.errorbar(
        xs, [row.step_s for row in rows], yerr=[below, above], color=COLOURS[0], marker="o", linewidth=2, capsize=4
    )
    axes.plot(xs, ideal, color=FAINT, linestyle=(0, (5, 2)), linewidth=1.5)
    axes.set_ylim(0, max(row.high_s for row in rows) * 1.15)
    axes.yaxis.set_major_formatter(lambda seconds, _: spell_seconds(seconds) if seconds >= 0 else "")
    _dress_line(axes, rows, "time of a step (dashed: ideal)")
    axes = figure.add_axes((0.395, 0.19, 0.25, 0.56))
    low, high = ([row.speedup * row.step_s / getattr(row, name) for row in rows] for name in ("high_s", "low_s"))
    speed = [row.speedup for row in rows]
    errors = [[a - b for a, b in zip(speed, low, strict=True)], [b - a for a, b in zip(speed, high, strict=True)]]
    axes.errorbar(xs, speed, yerr=errors, color=COLOURS[0], marker="o", linewidth=2, capsize=4)
    axes.plot(xs, xs, color=FAINT, linestyle=(0, (5, 2)), linewidth=1.5)
    for row in rows:
        axes.annotate(
            f"{row.efficiency:.0%}", (row.workers, row.speedup), textcoords="offset points", xytext=(6, -14), size=10,
            color=ALARM if row.is_oversubscribed else INK, **_TEXT,
        )  # fmt: skip
    axes.set_ylim(0, max(*xs, *high) * 1.08)
    _dress_line(axes, rows, "speed-up, efficiency (dashed: ideal)")
    _draw_phases(figure.add_axes((0.72, 0.19, 0.265, 0.56)), rows)
    if any(row.is_oversubscribed for row in rows):
        text = "red: more workers than cores, which take turns"
        figure.text(0.395, 0.025, text, size=10.5, color=ALARM, **_TEXT)
    save(figure, path)


def _dress_line(axes: "Axes", rows: Sequence[Row], title: str) -> None:
    xs = [row.workers for row in rows]
    _dress(axes, rows, xs, title)
    axes.set_xlim(min(xs) - 0.4, max(xs) + 0.6)
    axes.grid(visible=True, color=RULE, alpha=0.5, linewidth=0.8)


def _dress(axes: "Axes", rows: Sequence[Row], places: Sequence[int], title: str) -> None:
    """Write the title and the workers, the oversubscribed ones in red."""
    axes.set_title(title, loc="left", size=12, color=INK, **_TEXT)
    axes.set_xticks([*places], [str(row.workers) for row in rows])
    for label, row in zip(axes.get_xticklabels(), rows, strict=True):
        label.set_color(ALARM if row.is_oversubscribed else INK)
    axes.set_xlabel("workers", size=11, **_TEXT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=10)


def _draw_phases(axes: "Axes", rows: Sequence[Row]) -> None:
    places, below = range(len(rows)), [0.0] * len(rows)
    for number, phase in enumerate(STEP_PHASES):
        values = [row.phases_s[phase] for row in rows]
        axes.bar(places, values, 0.7, bottom=below, color=COLOURS[number], label=phase)
        below = [a + b for a, b in zip(below, values, strict=True)]
    _dress(axes, rows, places, "where a step goes (median rank)")
    axes.yaxis.set_major_formatter(lambda seconds, _: spell_seconds(seconds) if seconds >= 0 else "")
    axes.set_ylim(0, max([*below, 1e-9]) * 1.32)
    axes.legend(loc="upper right", ncols=3, frameon=False, fontsize=9.5, columnspacing=1, handlelength=1)
