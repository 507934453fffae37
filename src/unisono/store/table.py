"""Keys and values of a store, with bounds (pure): what `torch.distributed.Store` can do, on bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from unisono.errors import UnisonoError


class Full(UnisonoError):
    """A key, a value or all of them together are larger than the store takes, or a value is no number."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """The most that a store holds."""

    key_bytes: int = 4096  #: Of one key.
    value_bytes: int = 4 << 20  #: Of one value.
    keys: int = 1 << 18  #: Number of keys.
    total_bytes: int = 256 << 20  #: Of all keys and values.


@final
class KeyTable:
    """The values by key; every method is one step that others see whole or not at all."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._values: dict[bytes, bytes] = {}
        self._total = 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def has(self, keys: Sequence[bytes]) -> bool:
        """Whether all of the keys have values."""
        return all(key in self._values for key in keys)

    def get(self, key: bytes) -> bytes:
        """Return a value; KeyError where there is none."""
        return self._values[key]

    def set(self, key: bytes, value: bytes) -> None:
        """Write a value, whatever was there."""
        bounds, before = self._bounds, self._values.get(key)
        if len(key) > bounds.key_bytes or len(value) > bounds.value_bytes:
            raise Full(
                f"expected at most {bounds.key_bytes} bytes in a key and {bounds.value_bytes} in a value, got "
                f"{len(key)} and {len(value)}."
            )
        if before is None and len(self._values) >= bounds.keys:
            raise Full(f"expected at most {bounds.keys} keys in the store.")
        total = self._total + len(value) - (-len(key) if before is None else len(before))
        if total > bounds.total_bytes:
            raise Full(f"expected at most {bounds.total_bytes} bytes in the store, got {total}.")
        self._values[key], self._total = value, total

    def add(self, key: bytes, amount: int) -> int:
        """Add to a number, 0 where there is none; return the sum."""
        before = self._values.get(key, b"0")
        try:
            total = int(before[:32]) + amount
        except ValueError:
            raise Full("expected a number to add to.") from None
        if not -(1 << 63) <= total < 1 << 63:
            raise Full("expected a sum of 64 bits.")
        self.set(key, b"%d" % total)
        return total

    def compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        """Write `desired` where `expected` stands, or nothing stands and `expected` is empty; return what stands then.

        Where nothing stands and something was expected, `expected` is returned, as torch's stores do.
        """
        before = self._values.get(key)
        if before is None and expected:
            return expected
        if before is not None and before != expected:
            return before
        self.set(key, desired)
        return desired

    def append(self, key: bytes, value: bytes) -> None:
        """Write a value behind the one that is there."""
        self.set(key, self._values.get(key, b"") + value)

    def delete(self, key: bytes) -> bool:
        """Forget a key; return whether it was there."""
        value = self._values.pop(key, None)
        if value is None:
            return False
        self._total -= len(key) + len(value)
        return True

    def drop(self, prefix: bytes) -> int:
        """Forget all keys that begin with `prefix`; return how many."""
        return sum(self.delete(key) for key in [key for key in self._values if key.startswith(prefix)])
