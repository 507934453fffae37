"""Counter-based randomness: every draw is keyed by what it is for, never by what was drawn before (pure).

There is no stream to save, and no key knows a rank or a world size.
"""

import functools
import struct
from collections.abc import Callable
from hashlib import blake2b

from unisono.errors import ConfigError


@functools.cache
def _packer(count: int) -> Callable[..., bytes]:
    """Return what packs so many whole numbers of 64 bits with sign, little-endian."""
    return struct.Struct(f"<{count}q").pack


@functools.cache
def _person(purpose: str) -> bytes:
    person = purpose.encode()
    if len(person) > 16:
        raise ConfigError(f"expected a purpose of at most 16 bytes, got {purpose!r}.")
    return person


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
    packed = _packer(1 + len(counters))(seed, *counters)
    return _from_bytes(blake2b(packed, digest_size=8, person=_person(purpose)).digest(), "little")


_from_bytes = int.from_bytes
