"""A picture of a forecast: efficiency of every strategy over the ranks, and where the best one's step goes.

In: a forecast as ``unisono forecast --json`` prints it. Out: a PNG file. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.errors import ConfigError
from unisono.report.canvas import COLOURS, FAINT, FONT, INK, RULE, blank, save
from unisono.system.words import spell_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 560
_TEXT: dict[str, Any] = {"family": FONT, "parse_math": False}
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
PARTS = {
    "compute_s": "compute", "wait_s": "stragglers", "data_s": "data", "communication_s": "communication",
    "update_s": "update",
}  # fmt: skip


def draw_forecast(told: Mapping[str, Any], path: str | Path) -> None:
    """Draw a forecast.

    Args:
        told: With ``forecasts`` and ``job``.
        path: File to write; its directory must exist.

    Raises:
        ConfigError: No forecasts, or the file cannot be written.
    """
    rows = told["forecasts"]
    if not rows:
        raise ConfigError("expected forecasts to draw, got none.")
    figure = blank(_HEIGHT)
    kind = "weak" if told["job"]["weak"] else "strong"
    figure.text(0.025, 1 - 34 / _HEIGHT, f"Forecast: {kind} scaling", size=17, weight="bold", color=INK, **_TEXT)
    _draw_efficiency(figure.add_axes((0.06, 0.24, 0.42, 0.60)), rows)
    _draw_parts(figure.add_axes((0.56, 0.24, 0.42, 0.60)), rows)
    save(figure, path)


def _draw_efficiency(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    names = [one["strategy"] for one in rows[0]["predictions"]]
    xs = [row["ranks"] for row in rows]
    for number, name in enumerate(names):
        ys = [next(one["efficiency"] for one in row["predictions"] if one["strategy"] == name) for row in rows]
        dashes: Any = _DASHES[number // len(COLOURS) % len(_DASHES)]
        axes.plot(xs, ys, color=COLOURS[number % len(COLOURS)], linestyle=dashes, linewidth=2, label=name,
                  marker="o", markersize=3.5)  # fmt: skip
    axes.axhline(1.0, color=FAINT, linestyle=(0, (5, 2)), linewidth=1.2)
    _label_ranks(axes, xs)
    top = max(1.05, *(one["efficiency"] * 1.03 for row in rows for one in row["predictions"]))
    axes.set_ylim(0, top)
    axes.set_title("efficiency: speed-up over ranks (dashed: ideal)", loc="left", size=12, color=INK, **_TEXT)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    legend = axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.14), ncols=3, frameon=False, fontsize=10.5)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw_parts(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    best = [next(one for one in row["predictions"] if one["strategy"] == row["best"]) for row in rows]
    places, below = range(len(rows)), [0.0] * len(rows)
    for number, (key, name) in enumerate(PARTS.items()):
        shares = [one[key] / one["step_s"] for one in best]
        axes.bar(places, shares, 0.78, bottom=below, color=COLOURS[number], label=name)
        below = [a + b for a, b in zip(below, shares, strict=True)]
    every = max(1, -(-len(rows) // 9))
    axes.set_xticks([*places][::every], [spell_count(row["ranks"]) for row in rows][::every])
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("ranks", size=11, **_TEXT)
    axes.set_title("where a step of the best strategy goes", loc="left", size=12, color=INK, **_TEXT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.14), ncols=3, frameon=False, fontsize=10.5)


def _label_ranks(axes: "Axes", xs: Sequence[int]) -> None:
    if len(xs) > 1:
        axes.set_xscale("log", base=2)
    every = max(1, -(-len(xs) // 8))
    axes.set_xticks(list(xs)[::every], [spell_count(x) for x in xs][::every])
    axes.minorticks_off()
    axes.set_xlabel("ranks", size=11, **_TEXT)
    axes.grid(visible=True, which="major", color=RULE, alpha=0.5, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=10)
