"""Numbers as people write them, from microseconds to months and from bytes to terabytes (pure)."""

import math


def spell_seconds(seconds: float) -> str:
    """Return a time of any length: ``12.5 µs``, ``3.2 h``, ``40 d``; ``never`` for infinity, ``0 s`` for nothing."""
    if math.isinf(seconds):
        return "never"
    if seconds == 0:
        return "0 s"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}" if seconds < 1000 * length else f"{seconds / length:,.0f} {unit}"
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
