"""Numbers that come from outside: counts, seconds, sizes, fractions, factors; each declared once (pure).

In: what somebody typed, wrote into a run file, or passed to a function. Out: a plain ``int`` or ``float``, finite and
within its bounds, or a `ConfigError` that says what was expected, unit and bounds included, and what was got. A bound
is far above what anybody needs and below what would start processes without end, fill the memory or overflow.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, ClassVar, final

from unisono.errors import ConfigError

_LONGEST = 60
"""Characters of a value that a message shows."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,100}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,100}\.?[0-9]{0,100}|\.[0-9]{1,100})([eE][+-]?[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Quantity(ABC):
    """What a number may be."""

    noun: ClassVar[str] = "a number"

    low: float  #: Smallest value.
    high: float  #: Largest value.
    unit: str = ""  #: What is counted or measured: ``steps``, ``seconds``; empty for a plain number.

    @property
    @abstractmethod
    def bounds(self) -> str:
        """The bounds in words."""

    @property
    def words(self) -> str:
        """What is expected, as messages say it."""
        return f"{self.noun}{self.unit and ' of '}{self.unit} {self.bounds}"

    @abstractmethod
    def take(self, name: str, value: Any) -> Any:
        """Return a number that a program gives, as a plain one."""

    @abstractmethod
    def read(self, name: str, text: str) -> Any:
        """Return a number that somebody has typed.

        Raises:
            ConfigError: As `take`; also for what only Python takes for a number (``1_000``, digits of other scripts).
        """

    def maybe(self, name: str, value: Any) -> Any:
        """Return None for None, else what `take` returns."""
        return None if value is None else self.take(name, value)

    def refuse(self, name: str, found: str) -> ConfigError:
        """Return the error that says what was expected, and what was found."""
        return ConfigError(f"expected {name} as {self.words}, got {found}.")


@final
@dataclass(frozen=True, slots=True)
class Count(Quantity):
    """A whole number."""

    noun: ClassVar[str] = "a whole number"

    @property
    def bounds(self) -> str:
        return f"from {_spelled(self.low)} to {_spelled(self.high)}"

    def take(self, name: str, value: Any) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            raise ConfigError(
                f"expected {name} as {self.noun}, got the text {value!r:.60}. Hint: leave the quotes out."
            )
        if isinstance(value, float) and value.is_integer() and self.low <= value <= self.high:
            raise ConfigError(f"{self.refuse(name, _with_type(value))} Hint: {int(value)}; a // b has no decimals.")
        if isinstance(value, bool) or not isinstance(value, Integral) or not self.low <= int(value) <= self.high:
            raise self.refuse(name, _with_type(value))
        return int(value)

    def read(self, name: str, text: str) -> int:
        if not _WHOLE.fullmatch(text.strip()):
            raise self.refuse(name, shown(text))
        return self.take(name, int(text))


@final
@dataclass(frozen=True, slots=True)
class Amount(Quantity):
    """A number with or without decimals."""

    above: bool = False  #: Whether the smallest value itself is too small.
    below: bool = False  #: Whether the largest value itself is too large.

    @property
    def bounds(self) -> str:
        low = "above" if self.above else "from"
        high = ", below" if self.below else ", at most" if self.above else " to"
        return f"{low} {_spelled(self.low)}{high} {_spelled(self.high)}"

    def take(self, name: str, value: Any) -> float:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not self.low <= value <= self.high:
            raise self.refuse(name, _with_type(value))
        if (self.above and value == self.low) or (self.below and value == self.high):
            raise self.refuse(name, _with_type(value))
        return value if type(value) in (int, float) else float(value)

    def read(self, name: str, text: str) -> float:
        if not _DECIMAL.fullmatch(text.strip()):
            raise self.refuse(name, shown(text))
        try:
            return self.take(name, float(text))
        except ConfigError:
            raise self.refuse(name, text.strip()) from None  # what was typed, not what a float makes of it


def shown(value: object) -> str:
    """Return a value as messages show it: on one line, a long one only in part."""
    if isinstance(value, int) and value.bit_length() > 200:  # Python writes no more than 4,300 digits
        return f"a number of {value.bit_length() * 30103 // 100000 + 1:,} digits"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]}... ({len(text):,} characters)"


def _spelled(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:,.15g}" if abs(bound) < 1e15 else f"{bound:g}"


def _with_type(value: object) -> str:
    is_plain = isinstance(value, int | float) and not isinstance(value, bool)
    return shown(value) if is_plain else f"{shown(value)} ({type(value).__name__})"


def settle(part: object, **quantities: Quantity) -> None:
    """Check attributes of a frozen dataclass that has just been made, and make plain numbers of them.

    None is left alone where it is the attribute's default.
    """
    fields: Mapping[str, Any] = getattr(part, "__dataclass_fields__", MappingProxyType({}))
    for name, quantity in quantities.items():
        value = getattr(part, name)
        if value is not None or fields[name].default is not None:
            object.__setattr__(part, name, quantity.take(name, value))


# Processes, threads, hosts.
WORKERS = Count(1, 4096, "processes")
THREADS = Count(1, 4096, "threads")
LOADERS = Count(0, 1024, "processes")
NODES = Count(1, 65_536, "hosts")
NODE_RANK = Count(0, 65_535)
RANKS = Count(1, 65_536)
DEVICES = Count(0, 4096, "devices")
CPUS = Amount(0, 4096, "CPUs", above=True)
PORT = Count(1, 65_535)
RESTARTS = Count(0, 1_000_000)
SPARES = Count(0, 4096)
RUNS = Count(1, 10_000)
# Training.
SEED = Count(-(2**63), 2**63 - 1)
REPLICAS = Count(1, 65_536, "replicas")
EPOCHS = Count(1, 10**9, "epochs")
STEPS = Count(1, 10**12, "steps")
BATCH = Count(1, 10**9, "samples")
SAMPLES = Count(1, 10**12, "samples")
TOKENS = Count(1, 10**9, "tokens")
BATCHES = Count(0, 10**6, "batches")
PLACE = Count(0, 10**12)
PREFETCH = Count(1, 4096, "micro-batches")
KEPT = Count(1, 10**6, "checkpoints")
COUNT = Count(1, 10**9)
LEARNING_RATE = Amount(0, 1e9, above=True)
CLIP = Amount(0, 1e30, above=True)
FRACTION = Amount(0, 1)
DECAY = Amount(0, 1, below=True)
SHARE = Amount(0, 1e9, above=True)
FACTOR = Amount(1, 1e6)
# Time: up to ten years.
SECONDS = Amount(0, 315_360_000, "seconds")
WAIT = Amount(0, 315_360_000, "seconds", above=True)
SILENCE = Amount(0.5, 86_400, "seconds")
INTERVAL = Amount(0.1, 86_400, "seconds")
GRACE = Count(1, 31_536_000, "seconds")
WARNING = Count(1, 65_535, "seconds")
"""Before the time limit; what Slurm takes."""
# Forecasts.
PARAMETERS = Amount(1, 1e15)
ELEMENT_BYTES = Amount(0, 1024, "bytes", above=True)
JITTER = Amount(0, 1e3)
RATE = Amount(0, 1e18, "samples a second", above=True)
BYTES = Count(0, 2**60, "bytes")
