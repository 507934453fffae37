"""Machines as numbers: units, sharing, wrong values refused."""

import pytest

from unisono.errors import ConfigError
from unisono.scaling.machine import Link, Machine, parse_rate, parse_seconds

LINK = Link(latency_s=5e-6, s_per_byte=1e-9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("400Gb/s", 50e9), ("400 Gbit/s", 50e9), ("50GB/s", 50e9), ("25Gbps", 3.125e9), ("1e3B/s", 1e3)],
)
def test_rates_tell_bits_from_bytes(text, expected):
    """A small b is a bit, a large B a byte, as on network cards and in memory."""
    assert parse_rate(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"), [("5us", 5e-6), ("5µs", 5e-6), ("12 ms", 0.012), ("3h", 10800.0), ("0.5", 0.5)]
)  # fmt: skip
def test_times(text, expected):
    """Units from nanoseconds to days; seconds where none is given."""
    assert parse_seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_rate, ""), (parse_rate, "400"), (parse_rate, "0Gb/s"), (parse_rate, "1.2.3GB/s"), (parse_rate, "1e999GB/s"),
     (parse_seconds, "-1s"), (parse_seconds, "soon"),
     (parse_seconds, "nan")],
)  # fmt: skip
def test_what_is_no_number_is_refused(parse, text):
    """The message shows what was expected and what was got."""
    with pytest.raises(ConfigError, match="expected a"):
        parse(text)


@pytest.mark.parametrize("wrong", [{"node_size": 0}, {"cores": 0}, {"crowding": 0.5}, {"add_s_per_byte": -1.0}])
def test_impossible_machines_are_refused(wrong):
    """Every number has its bounds."""
    with pytest.raises(ConfigError, match=f"expected {next(iter(wrong))}"):
        Machine(inside=LINK, between=LINK, **wrong)
    with pytest.raises(ConfigError, match="latency_s"):
        Link(latency_s=float("nan"), s_per_byte=0.0)


def test_ranks_that_share_cores_take_turns():
    """Up to the cores crowding alone slows a rank; beyond, it also waits for its turn, and so do its messages."""
    machine = Machine(inside=LINK, between=LINK, node_size=64, cores=4, crowding=1.3, turn_s=1e-3)
    assert machine.slowdown(1) == 1.0
    assert machine.slowdown(4) == pytest.approx(1.3)
    assert machine.slowdown(8) == pytest.approx(2.6)
    assert machine.crowded(4) is machine
    assert machine.crowded(8).inside.latency_s == pytest.approx(5e-6 + 1e-3)
    assert machine.crowded(8).inside.s_per_byte == pytest.approx(2e-9)
    own = Machine(inside=LINK, between=LINK, node_size=64)
    assert own.slowdown(64) == 1.0
    assert own.crowded(64) is own
