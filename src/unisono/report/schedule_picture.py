"""Pictures of collectives: the moves of a schedule, round by round.

In: a `Schedule`. Out: a PNG file. Imports no torch.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from unisono.collectives.schedules import Move, Round, Schedule, bytes_sent, start, states
from unisono.errors import ConfigError
from unisono.report.canvas import ALARM, COLOURS, DPI, FAINT, FONT, INK, RULE, WIDTH, blank, printable, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_RANKS = 8
"""More ranks than that nobody can read in one picture."""

_Outline = list[tuple[float, float]]

_LEFT, _RIGHT, _TOP, _NOTE = 150, 40, 196, 22
_STYLES: dict[str, Any] = {"add": "-", "copy": (0, (4, 2)), "forward": (0, (1.2, 1.2))}
_MEANING = {
    "add": "added to what is there",
    "copy": "put in place of what is there",
    "forward": "added; what travels on is what came, not the sum",
}


@final
@dataclass(frozen=True, slots=True)
class Content:
    """What a chunk holds: whose values, and in which order they were added.

    The order is spelt with the lower rank first, because of two values the order does not matter: two contents are
    equal if and only if their bits are.
    """

    ranks: frozenset[int]
    order: str

    def __add__(self, other: "Content") -> "Content":
        first, second = sorted((self, other), key=lambda part: min(part.ranks))
        return Content(self.ranks | other.ranks, f"({first.order}+{second.order})")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    """Sizes in pixels; the origin is the upper left corner.

    Attributes:
        cell: Width of a chunk.
        band: Height of one rank's part of a chunk.
        num_bands: One per rank where values are added, else one.
        gap: Height between rows, where the arrows are.
    """

    schedule: Schedule
    column: float
    cell: float
    band: float
    num_bands: int
    gap: float

    @property
    def height(self) -> float:
        return self.band * self.num_bands

    def left(self, rank: int, chunk: int) -> float:
        middle = _LEFT + (rank + 0.5) * self.column
        return middle + (chunk - self.schedule.num_chunks / 2) * self.cell

    def middle(self, rank: int, chunk: int) -> float:
        return self.left(rank, chunk) + self.cell / 2

    def top(self, row: int) -> float:
        return _TOP + row * (self.height + self.gap)


def draw_schedule(schedule: Schedule, title: str, path: str | Path) -> None:
    """Draw the moves of a schedule, round by round, to a PNG file.

    Ranks stand side by side and time runs down. A chunk shows whose values are in it, arrows are moves.

    Args:
        schedule: Of 1 to 8 ranks.
        title: Any text; shown literally, cut to one line.
        path: File to write; its directory must exist.

    Raises:
        ConfigError: More ranks than can be read, or the file cannot be written.
    """
    if schedule.world_size > MOST_RANKS:
        raise ConfigError(
            f"expected at most {MOST_RANKS} ranks in a picture, got {schedule.world_size}. "
            "Hint: without a picture, any number of ranks is explained in words."
        )
    layout = _plan(schedule)
    own = start(schedule, lambda rank, chunk: Content(frozenset([rank]), str(rank)))
    rows = list(states(schedule, own, lambda left, right: left + right))
    notes, are_equal = order_notes(schedule, rows[-1])
    foot = layout.top(len(rows) - 1) + layout.height + 38
    height = foot + _NOTE * len(notes)
    figure = blank(height)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    _draw_head(axes, layout, title)
    for row, (held, before) in enumerate(zip(rows, [own, *rows], strict=False)):
        _draw_row(axes, layout, row, held, before)
    for row, moves in enumerate(schedule.rounds):
        _draw_round(axes, layout, row, moves)
    for number, note in enumerate(notes):
        colour = INK if are_equal or number else ALARM
        _write(axes, 30, foot + number * _NOTE, note, size=10.5, colour=colour, bold=number == 0)
    save(figure, path)


def order_notes(schedule: Schedule, final: Sequence[Mapping[int, Content]]) -> tuple[list[str], bool]:
    """Return in which order each complete sum was added, as lines, and whether all ranks agree."""
    complete = [
        {chunk: value.order[1:-1] for chunk, value in held.items() if len(value.ranks) == schedule.world_size}
        for held in final
    ]
    havers = [rank for rank, orders in enumerate(complete) if orders]
    if schedule.world_size == 1 or not havers:
        return [], True
    orders = complete[havers[0]]
    if any(complete[rank] != orders for rank in havers):
        head = "The ranks have added in different orders, so rounding gives them DIFFERENT bits:"
        return [head, *(f"rank {rank}: {complete[rank][0]}" for rank in havers)], False
    where = "on every rank" if len(havers) == schedule.world_size else f"on rank {havers[0]}"
    if len(set(orders.values())) == 1:
        return [f"Order of addition, {where}, for every element: {orders[0]}"], True
    head = f"Order of addition, the same {where} (so the bits are too), but not for every chunk:"
    lines = [f"{letter(chunk)}: {order}" for chunk, order in sorted(orders.items())]
    width = 2 if len(lines) > 3 else 1
    padded = [line.ljust(52) for line in lines]
    return [head, *("".join(padded[at : at + width]).rstrip() for at in range(0, len(lines), width))], True


def letter(chunk: int) -> str:
    """Return a chunk's name: a, b, c ..."""
    return chr(ord("a") + chunk)


def _plan(schedule: Schedule) -> _Layout:
    n, chunks = schedule.world_size, schedule.num_chunks
    adds = any(move.action != "copy" for moves in schedule.rounds for move in moves)
    column = (WIDTH - _LEFT - _RIGHT) / n
    return _Layout(
        schedule=schedule,
        column=column,
        cell=min((column - (16 if n > 4 else 36)) / chunks, 64 if chunks == 1 else 46),
        band=(18 if n <= 4 else 15) if adds else 34,
        num_bands=n if adds else 1,
        gap=130 if any(len(moves) > 12 for moves in schedule.rounds) else 84,
    )


def _draw_head(axes: "Axes", layout: _Layout, title: str) -> None:
    schedule = layout.schedule
    sent = sorted({count / schedule.num_chunks for count in bytes_sent(schedule, schedule.num_chunks)})
    cost = f"{sent[0]:.3g} S" if len(sent) == 1 else f"between {sent[0]:.3g} and {sent[-1]:.3g} S"
    chunks = "" if schedule.num_chunks == 1 else f", cut into {schedule.num_chunks} chunks"
    _write(axes, 30, 36, printable(title, 17, WIDTH - 60), size=17, bold=True)
    _write(
        axes, 30, 68,
        f"{_count(schedule.world_size, 'rank')}, {_count(len(schedule.rounds), 'round')}. "
        f"In all, each rank sends {cost}, where S is the size of the buffer{chunks}.",
    )  # fmt: skip
    sums = "The numbers and colours in it are the ranks whose values have been added up in it."
    owners = "Its number and colour say whose values it holds."
    what = "a chunk" if schedule.num_chunks > 1 else "the buffer"
    _write(axes, 30, 92, f"Each box is {what} of one rank. {sums if layout.num_bands > 1 else owners}")
    x = 30.0
    for action in sorted({move.action for moves in schedule.rounds for move in moves}):
        axes.plot([x, x + 46], [116, 116], color=INK, linewidth=1.8, linestyle=_STYLES[action])
        _write(axes, x + 54, 116, _MEANING[action])
        x += 88 + 8.0 * len(_MEANING[action])
    if schedule.rounds:
        axes.plot(*zip(*_outline(x, 108, 16, 16), strict=True), color=INK, linewidth=2.4)
        _write(axes, x + 24, 116, "new in this round")
    if any(_is_ring(schedule, moves) for moves in schedule.rounds):
        _write(axes, x + 190, 116, "The right edge goes on at the left one.")
    for rank in range(schedule.world_size):
        heading = _LEFT + (rank + 0.5) * layout.column
        _write(axes, heading, 156, f"rank {rank}", size=12.5, colour=COLOURS[rank], bold=True, align="center")
        for chunk in range(schedule.num_chunks if schedule.num_chunks > 1 else 0):
            _write(axes, layout.middle(rank, chunk), 182, letter(chunk), size=10, colour=FAINT, align="center")


def _draw_row(
    axes: "Axes",
    layout: _Layout,
    row: int,
    held: Sequence[Mapping[int, Content]],
    before: Sequence[Mapping[int, Content]],
) -> None:
    from matplotlib.collections import PolyCollection

    schedule, top = layout.schedule, layout.top(row)
    colours: list[str] = []
    boxes: list[_Outline] = []
    quiet: list[_Outline] = []
    changed: list[_Outline] = []
    digits: dict[int, list[tuple[float, float]]] = {}
    for rank, chunk in itertools.product(range(schedule.world_size), range(schedule.num_chunks)):
        value = held[rank].get(chunk)
        inside = sorted(value.ranks) if value else []
        slots = dict(enumerate(inside)) if layout.num_bands == 1 else {source: source for source in inside}
        left = layout.left(rank, chunk)
        for slot in range(layout.num_bands):
            boxes.append(_outline(left, top + slot * layout.band, layout.cell, layout.band))
            colours.append(COLOURS[slots[slot]] if slot in slots else "#f7f7f7")
            if slot in slots:
                place = (layout.middle(rank, chunk), top + (slot + 0.5) * layout.band)
                digits.setdefault(slots[slot], []).append(place)
        frames = quiet if value == before[rank].get(chunk) else changed
        frames.append(_outline(left, top, layout.cell, layout.height))
    axes.add_collection(PolyCollection(boxes, facecolors=colours, edgecolors="white", linewidths=0.6, zorder=3))
    axes.add_collection(PolyCollection(quiet, facecolors="none", edgecolors=RULE, linewidths=1.0, zorder=5))
    axes.add_collection(PolyCollection(changed, facecolors="none", edgecolors=INK, linewidths=2.4, zorder=6))
    # Digits as markers: thousands of them take no time, thousands of texts would.
    size = min(layout.band - 6, layout.cell - 4, 14) * 72 / DPI
    for source, places in digits.items():
        xs, ys = zip(*places, strict=True)
        axes.scatter(xs, ys, marker=f"$\\mathbf{{{source}}}$", s=size**2, color="white", linewidths=0, zorder=4)
    if row == 0:
        _write(axes, 30, top + layout.height / 2, "start", bold=True)


def _draw_round(axes: "Axes", layout: _Layout, row: int, moves: Round) -> None:
    top, bottom = layout.top(row) + layout.height + 4, layout.top(row + 1) - 4
    last = layout.schedule.world_size - 1
    is_ring = _is_ring(layout.schedule, moves)
    for move in moves:
        tail = (layout.middle(move.source, move.chunk), top)
        head = (layout.middle(move.target, move.chunk), bottom)
        if is_ring and move.source == last:
            # Out at the right edge, in at the left one, in step with the other arrows.
            _arrow(axes, move, tail, (head[0] + (last + 1) * layout.column, bottom), (_LEFT, WIDTH - 18))
            _arrow(axes, move, (tail[0] - (last + 1) * layout.column, top), head, (_LEFT - 22, WIDTH))
        else:
            _arrow(axes, move, tail, head, (0, WIDTH))
    sent = sorted({sum(move.source == rank for move in moves) for rank in {move.source for move in moves}})
    chunks = layout.schedule.num_chunks
    shares = [f"{count / math.gcd(count, chunks):.0f}/{chunks / math.gcd(count, chunks):.0f}" for count in sent]
    sizes = " or ".join("S" if share == "1/1" else share.removesuffix("/1") + " S" for share in shares)
    middle = (top + bottom) / 2
    _write(axes, 30, middle - 10, f"round {row + 1}", bold=True)
    _write(axes, 30, middle + 11, f"send {sizes}", size=9.5, colour=FAINT)


def _is_ring(schedule: Schedule, moves: Round) -> bool:
    n = schedule.world_size
    return n > 2 and len(moves) == n and all(move.target == (move.source + 1) % n for move in moves)


def _arrow(
    axes: "Axes", move: Move, tail: tuple[float, float], head: tuple[float, float], window: tuple[float, float]
) -> None:
    """Draw one arrow, cut off at the window's left and right edges."""
    from matplotlib.patches import FancyArrowPatch, Rectangle

    colour = COLOURS[move.source]
    line = axes.plot(
        *zip(tail, head, strict=True), color=colour, linewidth=1.6, linestyle=_STYLES[move.action], zorder=2
    )
    tip = (head[0] - (head[0] - tail[0]) * 0.02, head[1] - (head[1] - tail[1]) * 0.02)
    point = FancyArrowPatch(
        tip, head, color=colour, arrowstyle="-|>", mutation_scale=11, shrinkA=0, shrinkB=0, zorder=7
    )
    axes.add_patch(point)
    # The patch is in data units, the y axis points down: any tall rectangle does.
    for artist in (*line, point):
        artist.set_clip_path(Rectangle((window[0], 0), window[1] - window[0], 1e6, transform=axes.transData))


def _outline(left: float, top: float, width: float, height: float) -> _Outline:
    right, bottom = left + width, top + height
    return [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _write(
    axes: "Axes",
    x: float,
    y: float,
    text: str,
    *,
    size: float = 11.0,
    colour: str = INK,
    bold: bool = False,
    align: str = "left",
) -> None:
    axes.text(
        x, y, text, size=size, color=colour, weight="bold" if bold else "normal", ha=align, va="center",
        family=FONT, parse_math=False, zorder=8,
    )  # fmt: skip
