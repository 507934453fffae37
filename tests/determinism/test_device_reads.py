"""Small numbers of a device: all of them with one wait for each device, bit for bit."""

import device_waits
from ranks import run_processes


def test_all_kinds_come_together():
    """Flags, losses, counters, complex numbers, nothing at all: from two devices and the CPU, with two waits."""
    waits, arrived = run_processes(device_waits.mixed, 1)[0]
    assert waits == 2
    assert arrived == [[True] * 18] * 3
