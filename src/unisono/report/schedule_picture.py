"""Pictures of collectives: the moves of a schedule, round by round.

In: a `Schedule`. Out: an SVG file. Imports no torch.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from unisono.collectives.schedules import Move, Round, Schedule, bytes_sent, start, states
from unisono.errors import ConfigError
from unisono.report.picture import save, wrapped
from unisono.report.svg import Drawing, cut, width_of

MOST_RANKS = 8
"""More ranks than that nobody can read in one picture."""
WIDTH = 500
"""At least so wide; as narrow as it can be, so that a phone shows its words large enough."""

_EDGE, _LEFT, _RIGHT, _LINE = 8, 104, 14, 22
_TITLE, _TEXT, _SMALL = 21, 16, 16
_STYLES = {"add": "", "copy": " dash", "forward": " dots"}
_MEANING = {
    "add": "added to what is there",
    "copy": "put in place of what is there",
    "forward": "added; what travels on is what came, not the sum",
    "new": "new in this round",
    "around": "The right edge goes on at the left one.",
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
    """Sizes in pixels; the origin is the upper left corner."""

    schedule: Schedule
    column: float
    cell: float  #: Width of a chunk.
    band: float  #: Height of one rank's part of a chunk.
    num_bands: int  #: One per rank where values are added, else one.
    gap: float  #: Height between rows, where the arrows are.
    told: Sequence[str]  #: Lines below the title.
    legend: Sequence[Sequence[str]]  #: Actions, "new" and "around", in rows.

    @property
    def width(self) -> float:
        return _LEFT + self.schedule.world_size * self.column + _RIGHT

    @property
    def height(self) -> float:
        return self.band * self.num_bands

    def left(self, rank: int, chunk: int) -> float:
        middle = _LEFT + (rank + 0.5) * self.column
        return middle + (chunk - self.schedule.num_chunks / 2) * self.cell

    def middle(self, rank: int, chunk: int) -> float:
        return self.left(rank, chunk) + self.cell / 2

    def top(self, row: int) -> float:
        return 98 + _LINE * (len(self.told) + len(self.legend)) + row * (self.height + self.gap)


def draw_schedule(schedule: Schedule, title: str, path: str | Path) -> None:
    """Draw the moves of a schedule, round by round, to an SVG file.

    Ranks stand side by side and time runs down. A chunk shows whose values are in it, arrows are moves.
    """
    save(picture_of(schedule, title), path)


def picture_of(schedule: Schedule, title: str) -> Drawing:
    """Return the picture; see `draw_schedule`."""
    if schedule.world_size > MOST_RANKS:
        raise ConfigError(
            f"expected at most {MOST_RANKS} ranks in a picture, got {schedule.world_size}. "
            "Hint: without a picture, any number of ranks is explained in words."
        )
    layout = _plan(schedule)
    own = start(schedule, lambda rank, chunk: Content(frozenset([rank]), str(rank)))
    rows = list(states(schedule, own, lambda left, right: left + right))
    told, are_equal = order_notes(schedule, rows[-1])
    notes = [(line, number) for number, note in enumerate(told) for line in _lines(note, layout.width)]
    foot = layout.top(len(rows) - 1) + layout.height + 34
    out = Drawing(title, foot + _LINE * len(notes), layout.width)
    _draw_head(out, layout, title)
    for row, moves in enumerate(schedule.rounds):  # first, so that boxes cover the ends of lines
        _draw_round(out, layout, row, moves)
    for row, (held, before) in enumerate(zip(rows, [own, *rows], strict=False)):
        _draw_row(out, layout, row, held, before)
    for place, (line, number) in enumerate(notes):
        kind = "alarm" if number == 0 and not are_equal else "name"
        out.text(_EDGE, foot + place * _LINE, line, kind, size=_TEXT, bold=number == 0)
    return out


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
    return [head, *(",  ".join(lines[at : at + width]) for at in range(0, len(lines), width))], True


def letter(chunk: int) -> str:
    """Return a chunk's name: a, b, c ..."""
    return chr(ord("a") + chunk)


def _lines(text: str, width: float) -> list[str]:
    """Return a sentence in lines that fit, as if it were bold."""
    return wrapped(text, width - 2 * _EDGE, _TEXT * 1.15)


def _plan(schedule: Schedule) -> _Layout:
    n, chunks = schedule.world_size, schedule.num_chunks
    adds = any(move.action != "copy" for moves in schedule.rounds for move in moves)
    cell = 50.0 if chunks == 1 else max(14.0, min(26.0, 88 / chunks))
    column = max(cell * chunks + 12, (WIDTH - _LEFT - _RIGHT) / n)
    width = _LEFT + n * column + _RIGHT
    return _Layout(
        schedule=schedule, column=column, cell=cell, band=20 if adds else 30, num_bands=n if adds else 1,
        gap=130 if any(len(moves) > 12 for moves in schedule.rounds) else 76,
        told=[line for sentence in _sentences(schedule, adds) for line in _lines(sentence, width)],
        legend=_legend(schedule, width),
    )  # fmt: skip


def _sentences(schedule: Schedule, has_sums: bool) -> Sequence[str]:
    sent = sorted({count / schedule.num_chunks for count in bytes_sent(schedule, schedule.num_chunks)})
    cost = f"{sent[0]:.3g} S" if len(sent) == 1 else f"between {sent[0]:.3g} and {sent[-1]:.3g} S"
    chunks = "" if schedule.num_chunks == 1 else f", cut into {schedule.num_chunks} chunks"
    sums = "Numbers and colours: the ranks whose values have been added up in it."
    what = "a chunk" if schedule.num_chunks > 1 else "the buffer"
    return (
        f"Each rank sends {cost} in all; S is the size of the buffer{chunks}.",
        f"Each box is {what} of one rank. "
        + (sums if has_sums else "Its number and colour say whose values it holds."),
    )


def _legend(schedule: Schedule, width: float) -> list[list[str]]:
    """Return what the legend explains, as many in a row as there is room for."""
    wanted: list[str] = sorted({move.action for moves in schedule.rounds for move in moves})
    wanted += ["new"] if schedule.rounds else []
    wanted += ["around"] if any(_is_ring(schedule, moves) for moves in schedule.rounds) else []
    rows: list[list[str]] = []
    x = width
    for name in wanted:
        if x + _wide(name) > width - _EDGE:
            rows, x = [*rows, []], float(_EDGE)
        rows[-1].append(name)
        x += _wide(name)
    return rows


def _wide(name: str) -> float:
    """Return how wide an entry of the legend is."""
    return 66 + 1.1 * width_of(_MEANING[name], _TEXT)


def _draw_head(out: Drawing, layout: _Layout, title: str) -> None:
    schedule = layout.schedule
    out.text(_EDGE, 32, cut(title, layout.width - 2 * _EDGE, _TITLE * 1.2), "name", size=_TITLE, bold=True)
    for number, line in enumerate(layout.told):
        out.text(_EDGE, 56 + _LINE * number, line, "name", size=_TEXT)
    for row, names in enumerate(layout.legend):
        x, y = float(_EDGE), 56 + _LINE * (len(layout.told) + row)
        for name in names:
            if name == "new":
                out.box(x + 18, y - 12, 14, 14, "new")
            elif name in _STYLES:
                out.line([(x, y - 5), (x + 40, y - 5)], f"new{_STYLES[name]}")
            out.text(x if name == "around" else x + 48, y, _MEANING[name], "name", size=_TEXT)
            x += _wide(name)
    for rank in range(schedule.world_size):
        middle = _LEFT + (rank + 0.5) * layout.column
        top = layout.top(0)
        out.text(middle, top - 24, f"rank {rank}", f"rank fill c{rank}", at="middle", size=_TEXT, bold=True)
        for chunk in range(schedule.num_chunks if schedule.num_chunks > 1 else 0):
            out.text(layout.middle(rank, chunk), top - 7, letter(chunk), at="middle", size=_SMALL)


def _draw_row(
    out: Drawing, layout: _Layout, row: int, held: Sequence[Mapping[int, Content]],
    before: Sequence[Mapping[int, Content]],
) -> None:  # fmt: skip
    top, chunks = layout.top(row), range(layout.schedule.num_chunks)
    size = min(layout.band - 4, layout.cell - 2, 16)
    frames = []
    for rank, values in enumerate(held):
        left = layout.left(rank, 0)
        out.box(left, top, layout.cell * len(chunks), layout.height, "none")
        slots = [_slots(values.get(chunk), layout.num_bands) for chunk in chunks]
        for slot in range(layout.num_bands):
            y = top + slot * layout.band
            for source, found in itertools.groupby(chunks, key=lambda chunk: slots[chunk].get(slot)):
                if source is not None:
                    run = [*found]
                    x = layout.left(rank, run[0])
                    out.box(x, y, layout.cell * len(run), layout.band, f"fill c{source}")
                    for chunk in run:
                        middle = layout.middle(rank, chunk)
                        out.text(middle, y + layout.band / 2 + size * 0.36, source, "on", size=size)
        for chunk in chunks:
            is_old = values.get(chunk) == before[rank].get(chunk)
            frames.append((layout.left(rank, chunk), "old" if is_old else "new"))
    for left, kind in sorted(frames, key=lambda frame: frame[1], reverse=True):  # the new ones on top
        out.box(left, top, layout.cell, layout.height, kind)
    if row == 0:
        out.text(_EDGE, top + layout.height / 2 + 5, "start", "name", size=_TEXT, bold=True)


def _slots(value: Content | None, num_bands: int) -> dict[int, int]:
    """Return whose values stand in which band of a chunk."""
    inside = sorted(value.ranks) if value else []
    return dict(enumerate(inside)) if num_bands == 1 else {source: source for source in inside}


def _draw_round(out: Drawing, layout: _Layout, row: int, moves: Round) -> None:
    top, bottom = layout.top(row) + layout.height + 4, layout.top(row + 1) - 4
    last = layout.schedule.world_size - 1
    is_ring = _is_ring(layout.schedule, moves)
    for move in moves:
        tail, head = layout.middle(move.source, move.chunk), layout.middle(move.target, move.chunk)
        if is_ring and move.source == last:
            # Out at the right edge, in at the left one, in step with the other arrows.
            around = (last + 1) * layout.column
            _arrow(out, move, (tail, top), (head + around, bottom), (_LEFT, layout.width - 8))
            _arrow(out, move, (tail - around, top), (head, bottom), (_LEFT - 8, layout.width))
        else:
            _arrow(out, move, (tail, top), (head, bottom), (0, layout.width))
    sent = sorted({sum(move.source == rank for move in moves) for rank in {move.source for move in moves}})
    chunks = layout.schedule.num_chunks
    shares = [f"{count / math.gcd(count, chunks):.0f}/{chunks / math.gcd(count, chunks):.0f}" for count in sent]
    sizes = " or ".join("S" if share == "1/1" else share.removesuffix("/1") + " S" for share in shares)
    middle = (top + bottom) / 2
    out.text(_EDGE, middle - 5, f"round {row + 1}", "name", size=_TEXT, bold=True)
    out.text(_EDGE, middle + 16, f"send {sizes}", size=_SMALL)


def _is_ring(schedule: Schedule, moves: Round) -> bool:
    n = schedule.world_size
    return n > 2 and len(moves) == n and all(move.target == (move.source + 1) % n for move in moves)


def _arrow(
    out: Drawing, move: Move, tail: tuple[float, float], head: tuple[float, float], window: tuple[float, float]
) -> None:
    """Draw one arrow, cut off at the window's left and right edges."""
    (x1, y1), (x2, y2) = tail, head

    def inside(x: float) -> tuple[float, float]:
        kept = min(max(x, window[0]), window[1])
        return (kept, y1 + (kept - x1) / (x2 - x1) * (y2 - y1)) if kept != x else (x, y1 if x == x1 else y2)

    out.line([inside(x1), inside(x2)], f"line c{move.source}{_STYLES[move.action]}")
    if x2 <= out.width - _RIGHT:  # else its head is drawn where it comes in again
        length = math.hypot(x2 - x1, y2 - y1)
        along = (x2 - x1) / length, (y2 - y1) / length
        base = x2 - 11 * along[0], y2 - 11 * along[1]
        sides = [(base[0] + side * along[1] * 4.5, base[1] - side * along[0] * 4.5) for side in (1, -1)]
        out.line([head, *sides], f"fill c{move.source}")
