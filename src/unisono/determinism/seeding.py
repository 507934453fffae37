"""Counter-based randomness: every draw is keyed by what it is for, never by what was drawn before (pure).

There is no stream to save, and no key knows a rank or a world size.
"""

import functools
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from unisono.errors import ConfigError


@functools.cache
def _begun(purpose: str, count: int) -> tuple[Callable[[], Any], Callable[..., bytes]]:
    """Return what begins a hash for a purpose, and what packs so many numbers for it: 64 bits, signed, little-endian.

    To copy a hash that has been begun takes less time than to begin another.

    Raises:
        ConfigError: The purpose is longer than 16 bytes.
    """
    person = purpose.encode()
    if len(person) > 16:
        raise ConfigError(f"expected a purpose of at most 16 bytes, got {purpose!r}.")
    return blake2b(digest_size=8, person=person).copy, struct.Struct(f"<{count}q").pack


def mix(seed: int, purpose: str, *counters: int) -> int:
    """Return 64 well-mixed bits that depend on all arguments and on nothing else (BLAKE2b).

    Args:
        seed: The run's seed.
        purpose: What the bits are for (``"replica"``, ``"sample"``, ``"order"``); keeps the keys of different uses
            apart.
        counters: Step, replica, epoch, sample index, ...

    Raises:
        ConfigError: `purpose` is longer than 16 bytes.

    Example:
        >>> mix(0, "replica", 1, 0) == mix(0, "replica", 1, 0) != mix(0, "replica", 0, 1)
        True
    """
    begin, pack = _begun(purpose, 1 + len(counters))
    hashed = begin()
    hashed.update(pack(seed, *counters))
    return _from_bytes(hashed.digest(), "little")


_from_bytes = int.from_bytes
