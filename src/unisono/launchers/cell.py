"""A launch in the cell of a notebook: how far the workers are, drawn again while they run.

In: what the workers have told, on their heartbeat pages. Out: HTML in the cell; nothing outside of a kernel of Jupyter.
Must not import torch.
"""

import importlib
import linecache
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, final

from unisono.system.heartbeat import Reading
from unisono.system.words import spell_seconds

_DRAWN_EVERY_S = 0.5
_GROUND, _FULL = "rgba(128,128,128,.3)", "#0072b2"  # to be seen on light and dark pages
_SHOWN_RANKS = 16
_LEAST_POINTS, _MOST_POINTS = 3, 400
_WIDE, _HIGH = 600, 60  # of a loss curve; its width is that of the cell
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in .*$(?!\n    )', re.MULTILINE)  # without its line of source
_FILE = re.compile(r'^  File "(.+)",', re.MULTILINE)
_DOT = " \N{MIDDLE DOT} "


@final
class CellBar:
    """Draws the state of one attempt of a launch.

    Args:
        show: Puts HTML in the place of what it has put there before; None draws nothing.
        cells: Returns the name of the cell of a file, such as ``Cell In[3]``; nothing for another file.
    """

    def __init__(self, show: Callable[[str], None] | None, cells: Callable[[str], str] = lambda _: "") -> None:
        self._show, self._cells = show, cells
        self._began = self._drawn = time.monotonic()
        self._first: tuple[int, float] | None = None  # the first step that was seen to be done, and when
        self._losses: list[tuple[int, float]] = []  # steps and their losses, as they were seen

    @property
    def is_drawn(self) -> bool:
        """Whether there is a cell to draw in."""
        return self._show is not None

    def look(self, read: Callable[[], Mapping[int, Reading]]) -> None:
        """Draw what the workers have told, by rank, if it is time to."""
        now = time.monotonic()
        if self._show is not None and now - self._drawn >= _DRAWN_EVERY_S:
            self._drawn = now
            self._show(self.html(read(), now))

    def end(self, read: Callable[[], Mapping[int, Reading]], words: str, error: Exception | None = None) -> None:
        """Draw the last state, with how it ended, where a step was done; an error is shown as the worker's."""
        if self._show is None:
            return
        readings = read()
        is_refused = error is not None and not any(reading.done for reading in readings.values())
        self._show("" if is_refused else self.html(readings, time.monotonic(), words))
        if error is not None:
            told = once(with_lines(f"{type(error).__name__}: {error}", self._cells))
            setattr(error, "_render_traceback_", lambda: [told])  # noqa: B010

    def html(self, readings: Mapping[int, Reading], now: float, ended: str = "") -> str:
        """Return the drawing at a time (`time.monotonic`); `ended` says how the launch ended, if it has."""
        ahead = max(readings.values(), key=lambda reading: (reading.done, reading.last), default=Reading())
        if self._first is None and ahead.done:
            self._first = ahead.done, now
        if ahead.done and math.isfinite(ahead.loss) and (not self._losses or ahead.done > self._losses[-1][0]):
            self._losses = [*(self._losses if len(self._losses) < _MOST_POINTS else self._losses[::2]),
                            (ahead.done, ahead.loss)]  # fmt: skip
        words = [f"{len(readings)} worker{'s' * (len(readings) != 1)}"]
        if ahead.last:
            words.append(f"step {ahead.done:,} of {ahead.last:,}")
        elif ahead.done:
            words.append(f"step {ahead.done:,}")
        if ahead.done and math.isfinite(ahead.loss):
            words.append(f"loss {ahead.loss:.4f}")
        words += [ended, spell_seconds(round(now - self._began, 1))] if ended else self._speed(ahead, now)
        share = min(1.0, ahead.done / ahead.last) if ahead.last else 0.0
        ranks = [f"rank {rank}: {reading.phase or 'starting'}" for rank, reading in sorted(readings.items())]
        more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
        below = "" if ended else _DOT.join(ranks[:_SHOWN_RANKS]) + more
        return (
            f'<div style="max-width:44em"><div>{escape(_DOT.join(words))}</div>'
            f'<div role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{share:.0%}" '
            f'style="height:6px;margin:3px 0;border-radius:3px;background:{_GROUND}">'
            f'<div style="height:6px;border-radius:3px;width:{share:.1%};background:{_FULL}"></div></div>'
            f'<div style="font-size:85%;opacity:.75">{escape(below)}</div>{curve(self._losses)}</div>'
        )

    def _speed(self, ahead: Reading, now: float) -> list[str]:
        """Return steps a second and the time left, once two steps have been seen."""
        if self._first is None or ahead.done <= self._first[0]:
            return [spell_seconds(float(round(now - self._began)))]
        speed = (ahead.done - self._first[0]) / max(now - self._first[1], 1e-9)
        left = [f"{spell_seconds(float(round((ahead.last - ahead.done) / speed)))} left"] if ahead.last else []
        return [f"{speed:,.1f} steps/s", *left]


def curve(losses: Sequence[tuple[int, float]]) -> str:
    """Return a drawing of losses by step, with the least and the greatest one beside it; none of fewer than three."""
    if len(losses) < _LEAST_POINTS:
        return ""
    steps, values = zip(*losses, strict=True)
    low, high = min(values), max(values)
    width, height = max(steps[-1] - steps[0], 1), (high - low) or 1.0
    places = " ".join(
        f"{_WIDE * (step - steps[0]) / width:.1f},{_HIGH * (high - value) / height:.1f}" for step, value in losses
    )
    ends = "".join(f"<div>{value:.4g}</div>" for value in (high, low))
    told = f"loss of steps {steps[0]:,} to {steps[-1]:,}"
    pale = "font-size:85%;opacity:.75"
    line = f'fill="none" stroke="{_FULL}" stroke-width="1.5" vector-effect="non-scaling-stroke"'
    return (
        f'<div style="{pale};margin-top:4px">{told}</div><div style="display:flex;gap:6px">'
        f'<svg viewBox="0 -1 {_WIDE} {_HIGH + 2}" preserveAspectRatio="none" style="flex:1;height:{_HIGH}px" '
        f'role="img" aria-label="{told}: from {values[0]:.4g} to {values[-1]:.4g}">'
        f'<polyline points="{places}" {line}/></svg>'
        f'<div style="{pale};display:flex;flex-direction:column;justify-content:space-between">{ends}</div></div>'
    )


def once(text: str) -> str:
    """Return a worker's error as notebooks show errors: where it happened, and below that, once, what it is."""
    first, _, traceback = text.partition("\n\n")
    place, _, last = traceback.rpartition("\n")
    return f"{place}\n{first}" if place and first.endswith(last) else text


def with_lines(text: str, cells: Callable[[str], str] = lambda _: "") -> str:
    """Return a worker's traceback with names and lines of cells: workers have no file of a cell, this process has."""

    def with_line(found: re.Match[str]) -> str:
        line = linecache.getline(found[1], int(found[2])).strip()
        return f"{found[0]}\n    {line}" if line else found[0]

    def with_cell(found: re.Match[str]) -> str:
        return f"  {cell}," if (cell := cells(found[1])) else found[0]

    return _FILE.sub(with_cell, _FRAME.sub(with_line, text))


def cell_bar(*, is_shown: bool = True) -> CellBar:
    """Return what draws in the cell that is running; it draws nothing outside of a kernel of Jupyter."""
    ipython: Any = sys.modules.get("IPython")  # where it is not loaded, this is no notebook
    shell: Any = ipython.get_ipython() if is_shown and ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return CellBar(None)
    in_cells: Any = importlib.import_module("IPython.display")
    handle = in_cells.display(in_cells.HTML(""), display_id=True)

    def name(file: str) -> str:
        found: Any = getattr(shell.compile, "format_code_name", lambda _: None)(file)
        return " ".join(found) if found else ""

    return CellBar(lambda html: handle.update(in_cells.HTML(html)), name)
