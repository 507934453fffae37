"""What a run costs, as every rank knows it."""

import time

from ranks import run_threads
from unisono.observe.phases import PHASES
from unisono.observe.speed import Speed
from unisono.train.run_directory.usage import Usage


def test_steps_are_added_up_and_ranks_listed():
    """Samples over the seconds in steps; memory and bytes of each rank."""

    def program(transport):
        usage = Usage()
        for _ in range(3):
            usage.begin()
            time.sleep(0.002 * transport.rank)
            usage.end(10)
        transport.bytes_sent = 300 * (1 + transport.rank)
        return usage.summary(transport, [n * (1 + transport.rank) * 10**9 for n in range(len(PHASES))])

    first, second = run_threads(program, 2)
    assert first["bytes_sent_per_step"] == second["bytes_sent_per_step"] == [100, 200]
    assert len(first["peak_memory_bytes"]) == 2
    assert first["samples_per_s_within"] == second["samples_per_s_within"] <= 30 / 0.006  # of the slowest
    assert 0 < first["samples_per_s"] == second["samples_per_s"] < first["samples_per_s_within"]
    assert first["phases_s"]["data"] == [0, 0]
    assert first["phases_s"]["backward"] == second["phases_s"]["backward"] == [2, 4]


def test_what_is_between_steps_counts_by_the_clock(monkeypatch):
    """A body that sleeps slows what goes through, and no step; what was before the loop counts nowhere."""
    clock = [0.0]
    monkeypatch.setattr("unisono.train.run_directory.usage.time.perf_counter", lambda: clock[0])

    def wait(seconds):
        clock[0] += seconds

    usage = Usage()
    wait(100)
    usage.start()
    assert usage.now() is None
    for _ in range(2):
        wait(0.75)
        usage.begin()
        wait(0.25)
        usage.end(10)
    assert usage.now() == Speed(10.0, 40.0)
    wait(2)  # an evaluation at the end
    (told,) = run_threads(lambda transport: usage.summary(transport, [0] * len(PHASES)), 1)
    assert (told["samples_per_s"], told["samples_per_s_within"]) == (5.0, 40.0)


def test_a_run_that_did_nothing_has_no_speed():
    """No division by zero."""
    assert run_threads(lambda transport: Usage().summary(transport, [0] * len(PHASES))["samples_per_s"], 1) == [None]
