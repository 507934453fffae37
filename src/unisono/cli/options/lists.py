"""Lists that are typed with commas between: numbers of workers or ranks, sizes, names; others are a `ConfigError`."""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from unisono.errors import ConfigError
from unisono.options.quantities import LOADERS, RANKS, WORKERS, Count, shown
from unisono.system.hints import nearest

MOST_BYTES = 1 << 30
_COMPARED = replace(WORKERS, high=1024)
_FEW_LOADERS = replace(LOADERS, high=64)
_COLLECTIVE_RANKS = Count(2, 64)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_workers(text: str) -> list[int]:
    """Return numbers of workers from ``1,2,4``, in the given order, each from 1 to 1024."""
    try:
        return [_COMPARED.read("it", part) for part in text.split(",")]
    except ConfigError:
        expected = f"numbers such as 1,2,4, each {_COMPARED.bounds}"
        ends = re.fullmatch(r"(\d{1,4})-(\d{1,4})", text.strip())
        named = ",".join(map(str, range(int(ends[1]), int(ends[2]) + 1))) if ends else ""
        hint = f" Hint: {named}." if 0 < len(named) < 30 else ""
        raise ConfigError(f"expected --workers as {expected}, got {shown(text)}.{hint}") from None


def parse_loaders(text: str) -> list[int]:
    """Return numbers of loader processes from ``0,1,2``, each once, from 0 to 64."""
    read = "--loaders as numbers such as 0,1,2, each"
    return list(dict.fromkeys(_FEW_LOADERS.read(read, part) for part in text.split(",")))


def parse_ranks(text: str) -> list[int]:
    """Return numbers of ranks such as ``2,4``, in the given order, each once, from 2 to 64."""
    expected, hint = "--workers such as 2,4, each from 2 to 64", " Hint: a collective needs at least two ranks."
    return list(dict.fromkeys(_parse(text, lambda part: [_COLLECTIVE_RANKS.read("it", part)], expected, hint)))


def parse_counts(text: str) -> list[int]:
    """Return numbers of ranks from ``1,3,8`` or ``1..1024`` (its ends and the powers of two), ascending, each once."""

    def read(part: str) -> Iterable[int]:
        first, dots, last = part.partition("..")
        low = RANKS.read("it", first)
        high = RANKS.read("it", last) if dots else low
        if low > high:
            raise ConfigError(f"expected a range that ascends, got {part}.")
        return {low, high, *(1 << power for power in range(17) if low <= 1 << power <= high)}

    expected = f"--workers such as 1,2,8 or 1..1024, each from 1 to {RANKS.high}"
    return sorted(set(_parse(text, read, expected)))


def parse_sizes(text: str) -> list[int]:
    """Return sizes such as ``4KB,1MB`` in bytes, ascending, each once, from 1 byte to 1 GB."""

    def read(part: str) -> Iterable[int]:
        match = re.fullmatch(r"(\d{1,12})\s*([KMG]?)B?", part, re.IGNORECASE | re.ASCII)
        size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
        if not 1 <= size <= MOST_BYTES:
            raise ConfigError(f"expected a size, got {part}.")
        return [size]

    return sorted(set(_parse(text, read, "--sizes such as 4KB,64KB,1MB, each from 1B to 1GB")))


def parse_names(option: str, text: str, known: Collection[str]) -> list[str]:
    """Return names such as ``all_reduce,barrier``, each once; of one that is not known, say what was meant."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise ConfigError(f"expected {option} out of {', '.join(known)}, got {name!r}.{nearest(name, known)}")
    return names


def _parse(text: str, read: Callable[[str], Iterable[int]], expected: str, hint: str = "") -> list[int]:
    found: list[int] = []
    for part in map(str.strip, text.split(",")):
        try:
            found += read(part)
        except ConfigError:
            raise ConfigError(f"expected {expected}, got {part!r}.{hint}") from None
    return found
