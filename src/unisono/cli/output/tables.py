"""What verbs print for people: tables whose columns line up, in a terminal and in a pipe; or JSON in their place."""

import io
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from unisono.system.files import to_json

if TYPE_CHECKING:
    from unisono.report.content import Section


def answer(plain: Any, as_json: bool, lines: Callable[[], Iterable[str]]) -> None:
    """Print plain values as one line of JSON, or what `lines` returns."""
    for line in [to_json(plain)] if as_json else lines():
        click.echo(line)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], left: Collection[str] = ()) -> list[str]:
    """Return a table as lines; columns in which nothing stands are left out.

    A table wider than the terminal (80 columns in a pipe) goes on below, its first column repeated. Only a column that
    is set flush left may stand out to the right: nothing is cut.

    Args:
        head: Names of the columns.
        rows: Cells; None for nothing.
        left: Names of the columns that are set flush left, as words are; numbers are set flush right.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    columns = [(name, column) for name, *column in zip(head, *cells, strict=True) if any(column)]
    if not columns:
        return []
    room = shutil.get_terminal_size((80, 24)).columns
    widths = {name: max(map(cell_len, [name, *column])) for name, column in columns}
    gap = 2
    if sum(widths.values()) + gap * (len(widths) - 1) > room:  # narrower gaps, names of two words on two lines
        gap = 1
        widths = {name: max(map(cell_len, [*name.split(), *column])) for name, column in columns}
    blocks = [columns[:1]]
    for name, column in columns[1:]:
        used = sum(widths[other] + gap for other, _ in blocks[-1])
        if used + widths[name] > room and len(blocks[-1]) > 1 and name not in left:
            blocks.append(columns[:1])
        blocks[-1].append((name, column))
    out = io.StringIO()
    console = Console(file=out, width=10_000, color_system=None, markup=False, emoji=False, highlight=False)
    for block in blocks:
        grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
        for name, _ in block:
            grid.add_column(name, width=widths[name], justify="left" if name in left else "right", vertical="bottom")
        for row in zip(*(column for _, column in block), strict=True):
            grid.add_row(*row)
        console.print(grid)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def section_lines(section: "Section") -> list[str]:
    """Return a section of a report's page as lines: its findings and tables, without charts."""
    lines = [*section.lines]
    for found in section.tables:
        left = [name for place, name in enumerate(found.head) if place not in found.numeric]
        lines += [*([""] if lines else []), f"{found.title}:", *table(found.head, found.rows, left)]
    return [*lines, "", *(f"{'! ' * (remark.tone == 'alarm')}{remark.text}" for remark in section.findings)]
