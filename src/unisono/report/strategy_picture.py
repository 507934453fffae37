"""A picture of strategies side by side: speed, memory, bytes sent, accuracy after equal samples.

In: rows as ``unisono bench strategies --json`` prints them. Out: a PNG file. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.report.canvas import COLOURS, FAINT, FONT, INK, RULE, blank, printable, save

_TEXT: dict[str, Any] = {"family": FONT, "parse_math": False}
_BAR, _HEAD, _FOOT = 34, 96, 40


def draw_strategies(rows: Sequence[Mapping[str, Any]], path: str | Path, *, title: str) -> None:
    """Draw four columns of bars, a line for each strategy.

    Args:
        rows: Each with ``strategy``, ``samples_per_s``, ``peak_memory_bytes``, ``bytes_per_step`` and ``metrics``.
        path: File to write; its directory must exist.
        title: Of the picture.

    Raises:
        ConfigError: No rows, or the file cannot be written.
    """
    if not rows:
        raise ConfigError("expected measured strategies to draw, got none.")
    columns = {
        "samples a second": [row["samples_per_s"] or 0.0 for row in rows],
        "peak memory, MB": [row["peak_memory_bytes"] / 2**20 for row in rows],
        "sent a step, KB": [row["bytes_per_step"] / 1024 for row in rows],
        "test accuracy, %": [100 * row["metrics"].get("test_accuracy", 0.0) for row in rows],
    }
    height = _HEAD + _FOOT + _BAR * len(rows)
    figure = blank(height)
    figure.text(0.02, 1 - 36 / height, printable(title, 17), size=17, weight="bold", color=INK, **_TEXT)
    for number, (name, values) in enumerate(columns.items()):
        axes = figure.add_axes((0.14 + number * 0.215, _FOOT / height, 0.155, _BAR * len(rows) / height))
        axes.barh(range(len(rows)), values, color=COLOURS[number], height=0.62)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, max([*values, 1e-9]) * 1.3)
        axes.set_title(name, size=11.5, color=INK, loc="left", **_TEXT)
        axes.set_xticks([])
        axes.set_yticks(
            range(len(rows)), [printable(row["strategy"], 11, 150) for row in rows] if number == 0 else [""] * len(rows)
        )
        axes.tick_params(length=0, labelsize=11, labelcolor=INK)
        for place, value in enumerate(values):
            text = f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
            axes.text(value, place, f" {text}", va="center", size=10, color=FAINT, **_TEXT)
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
        axes.spines["left"].set_color(RULE)
    save(figure, path)
