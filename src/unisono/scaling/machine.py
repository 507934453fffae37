"""A machine as plain numbers: links, nodes, cores (pure).

The links follow LogGP: a message takes its sender's port for an overhead and a time for each byte, and arrives a
latency later. Source: Alexandrov, Ionescu, Schauser, Scheiman, "LogGP: incorporating long messages into the LogP
model", SPAA 1995; with an overhead of 0 it is the alpha-beta model of Hockney, "The communication challenge for MPP",
Parallel Computing 20 (1994).
"""

import math
import re
from dataclasses import dataclass, replace
from typing import final

from unisono.errors import ConfigError
from unisono.options.fields import check, option
from unisono.options.quantities import COUNT, FACTOR, Amount, shown

COST = Amount(0, 1e15)
"""Seconds, or seconds a byte, of a model: products of some of them stay finite."""
TIME = Amount(0, 1e12, "seconds")
BANDWIDTH = Amount(1, 1e18, "bytes a second")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What carries messages between two ranks."""

    latency_s: float = option(text="From the last byte's departure to its arrival (alpha).", of=COST)
    s_per_byte: float = option(text="Time of the port for each byte (beta): 1 / bandwidth of one direction.", of=COST)
    overhead_s: float = option(0.0, "Time of the port for each message, beside its bytes.", of=COST)

    def __post_init__(self) -> None:
        check(self)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Ranks on nodes; rank r sits on node ``r // node_size``."""

    inside: Link  #: Between ranks of one node.
    between: Link  #: Of one network card, between nodes.
    node_size: int = option(1, "Ranks of a node.", of=COUNT)
    nics: int = option(1, "Network cards of a node, shared by its ranks.", of=COUNT)
    add_s_per_byte: float = option(0.0, "Adding a byte that has arrived to one that is there (gamma).", of=COST)
    cores: int | None = option(
        None, "Of a node whose ranks share them; None: each rank has a device of its own.", of=COUNT
    )
    crowding: float = option(
        1.0, "Times slower that a rank computes when all cores are busy, against when it is alone.", of=FACTOR
    )
    turn_s: float = option(0.0, "Wait for a core in each round, for each further rank that a core has.", of=COST)
    turn_factor: float = option(
        1.0, "Where ranks share cores, how many times longer bytes take beyond their share of a core.", of=COST
    )

    def __post_init__(self) -> None:
        check(self)

    def num_nodes(self, ranks: int) -> int:
        """Return how many nodes so many ranks need."""
        return -(-ranks // self.node_size)

    def share(self, senders: int) -> float:
        """Return how many ranks share a network card where so many of a node send at once."""
        return max(1.0, senders / self.nics)

    def slowdown(self, ranks: int) -> float:
        """Return how many times longer a rank computes beside the others of its node than alone."""
        local = min(ranks, self.node_size)
        if self.cores is None:
            return 1.0
        busy = min(local, self.cores)
        beside = 1.0 if self.cores == 1 else 1.0 + (self.crowding - 1.0) * (busy - 1) / (self.cores - 1)
        return beside * max(1.0, local / self.cores)

    def crowded(self, ranks: int) -> "Machine":
        """Return the machine as so many ranks find it: those that share a core also take turns in communicating."""
        turns = 1.0 if self.cores is None else max(1.0, min(ranks, self.node_size) / self.cores)
        if turns == 1.0:
            return self

        def slower(link: Link) -> Link:
            latency_s = link.latency_s + (turns - 1) * self.turn_s
            return replace(link, latency_s=latency_s, s_per_byte=link.s_per_byte * longer)

        longer = turns * self.turn_factor
        added = self.add_s_per_byte * longer
        return replace(self, inside=slower(self.inside), between=slower(self.between), add_s_per_byte=added)


_RATE = re.compile(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*([kmgt]?)(b|bit|bits)(?:/s|ps)\s*", re.IGNORECASE)
_TIME = re.compile(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*(ns|us|µs|μs|ms|s|min|h|d)?\s*")
_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip


def parse_rate(text: str) -> float:
    """Return bytes per second from ``400Gb/s`` (bits) or ``50GB/s`` (bytes), in powers of 1000."""
    match = _RATE.fullmatch(text)
    unit = match.group(3) if match else ""
    value = _number(match.group(1)) * _DECIMAL[match.group(2).lower()] if match else 0.0
    value /= 1 if unit == "B" else 8
    return _checked(value, BANDWIDTH, "a bandwidth such as 400Gb/s (bits) or 50GB/s (bytes)", text)


def parse_seconds(text: str) -> float:
    """Return seconds from ``5us``, ``12 ms``, ``3h`` or a plain number of seconds."""
    match = _TIME.fullmatch(text)
    value = _number(match.group(1)) * _SECONDS[match.group(2) or "s"] if match else math.nan
    return _checked(value, TIME, "a time such as 5us, 12ms or 3h", text)


def _checked(value: float, quantity: Amount, form: str, text: str) -> float:
    try:
        return quantity.take("it", value)
    except ConfigError:
        raise ConfigError(f"expected {form}, {quantity.unit} {quantity.bounds}, got {shown(text)}.") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
