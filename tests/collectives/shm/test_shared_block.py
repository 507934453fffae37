"""Waiting: when the core is yielded; memory that cannot be had."""

import resource

import pytest

from unisono.collectives.shm import shared_block
from unisono.errors import WorldError


class Clock:
    """Time that passes only where a core is yielded."""

    def __init__(self, monkeypatch, yield_s):
        self.now, self.yield_s, self.num_yields = 100.0, yield_s, 0
        monkeypatch.setattr(shared_block.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(shared_block.os, "sched_yield", self.pass_on)
        monkeypatch.setattr(shared_block, "_no_yield_until", 0.0)

    def pass_on(self):
        self.num_yields += 1
        self.now += self.yield_s


def test_a_free_core_is_yielded_until_the_time_is_over(monkeypatch):
    """Yields that cost nothing go on for the time given."""
    clock = Clock(monkeypatch, yield_s=1e-6)
    assert not shared_block.comes_soon(lambda: False, 40e-6)
    assert clock.num_yields == pytest.approx(40, abs=1)
    assert not shared_block.comes_soon(lambda: False, 40e-6)
    assert clock.num_yields == pytest.approx(80, abs=2)


def test_a_core_that_others_want_is_not_yielded_again(monkeypatch):
    """One lost time slice is enough for a while; then it is tried again."""
    clock = Clock(monkeypatch, yield_s=3e-3)
    for _ in range(5):
        assert not shared_block.comes_soon(lambda: False, 40e-6)
    assert clock.num_yields == 1
    clock.now += 1
    assert not shared_block.comes_soon(lambda: False, 40e-6)
    assert clock.num_yields == 2


def test_what_has_come_needs_no_yield(monkeypatch):
    """Also where nothing is yielded, what lies there is found; and what comes during a long yield."""
    clock = Clock(monkeypatch, yield_s=3e-3)
    assert shared_block.comes_soon(lambda: True, 40e-6)
    assert clock.num_yields == 0
    assert shared_block.comes_soon(lambda: clock.num_yields == 1, 40e-6)


def test_a_limit_on_file_sizes_is_named():
    """It counts for memory without a name, too; the control has no limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20480, before[1]))
    try:
        with pytest.raises(
            WorldError, match=r"20,481 bytes of memory .*Hint: ulimit -f unlimited; .* than 20480 bytes\.$"
        ):
            shared_block.SharedBlock.create("x", 20481)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    shared_block.SharedBlock.create("x", 20481)[0].close()
