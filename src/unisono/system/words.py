"""Numbers as people write them, from microseconds to months and from bytes to terabytes (pure)."""

import math
import textwrap
from collections.abc import Iterable, Iterator


def spell_seconds(seconds: float) -> str:
    """Return a time of any length: ``12.5 µs``, ``2 min 13 s``, ``40 d``; ``never`` for infinity, ``0 s`` for none."""
    if math.isinf(seconds):
        return "never"
    if seconds == 0:
        return "0 s"
    for unit, length, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        parts = round(seconds / part)
        if seconds > 59.95 and parts * part >= length:
            whole, rest = divmod(parts, length // part)
            return f"{whole:,} {unit}" + (f" {rest} {below}" if rest and whole < 100 else "")
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def spell_bytes(count: float) -> str:
    """Return a number of bytes in powers of 1024: ``64 KB``, ``1.5 TB``."""
    if count >= 1 << 40:
        return f"{spell_count(float(f'{count / (1 << 40):.4g}'))} TB"
    size, unit = float(round(count)), "B"
    for following in ("KB", "MB", "GB"):
        if size < 1024:
            break
        size, unit = size / 1024, following
    return f"{size:.{3 if size < 1000 else 4}g} {unit}"


def spell_count(number: float) -> str:
    """Return a number in about four digits: ``1,234``, ``0.5``."""
    if number == round(number) and abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 worker``, ``3 workers``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def packed(entries: Iterable[str], width: int) -> Iterator[str]:
    """Yield lines of entries, two blanks apart, none of them broken unless it is longer than a line."""
    line = ""
    for entry in entries:
        if line and len(line) + 2 + len(entry) > width:
            yield line
            line = entry
        else:
            line += f"  {entry}" if line else entry
    if line:
        yield line


def wrapped(text: str, width: int) -> str:
    """Return text in lines of at most `width` columns, broken between entries (two blanks apart), else between words.

    A word that is longer than a line stays whole.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        for part in [line] if len(line) <= width else packed(line.split("  "), width):
            lines += textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(lines)
