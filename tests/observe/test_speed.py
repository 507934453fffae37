"""Samples per second, wherever they are shown."""

import pytest

from unisono.observe.phases import PHASES
from unisono.observe.speed import WINDOW, Slow, Speed, rates, seconds_within, slow_rank, speed_in, speed_of


def test_samples_over_seconds():
    """All samples over all seconds, not the mean of rates: by the clock, and within steps; nothing of nothing."""
    speed = speed_of([(64, 0.2, 0.1), (64, 0.6, 0.3), (32, 0.2, 0.1)])
    assert (speed.by_clock, speed.within) == (pytest.approx(160), pytest.approx(320))
    assert speed_of([]) is None
    assert speed_of([(64, 0.0, 0.0)]) is None
    assert speed_of([(64, 0.1, 0.2)]) == Speed(320, 320)  # two clocks that differ: no step is faster than the clock


def test_the_time_outside_of_steps_is_told_where_it_counts():
    """From one and a half times on; both speeds are in words where there is room."""
    held, usual = speed_of([(100, 1.0, 0.4)]), speed_of([(100, 1.0, 0.7)])
    assert held.spell() == "100 samples/s (250 in steps)"
    assert held.spell_outside() == "60% of the time is outside of steps"
    assert usual.spell_outside() == ""


def test_a_result_tells_its_mean():
    """What is written is read again; a result of an older version knows one of the two."""
    speed = Speed(100.0, 250.0)
    assert rates(speed) == {"samples_per_s": 100.0, "samples_per_s_within": 250.0}
    assert speed_in(rates(speed)) == speed
    assert speed_in({"samples_per_s": 250.0}) == Speed(250.0, 250.0)
    assert speed_in(rates(None)) is speed_in({}) is None


def test_what_is_within_a_step():
    """What happens between two steps is no part of one."""
    seconds = dict.fromkeys(PHASES, 1.0)
    assert seconds_within(seconds) == len(PHASES) - len(("checkpoint", "evaluate", "other"))
    assert seconds_within(seconds | {"checkpoint": 9.0, "evaluate": 9.0, "other": 9.0}) == seconds_within(seconds)
    assert seconds_within({"forward": 0.25}) == 0.25


def steps_of(milliseconds, replicas=2, count=WINDOW):
    """So many steps of a rank with this forward pass, and an exchange of 50 ms."""
    return [({"data": 0.001, "forward": milliseconds / 1000, "reduce": 0.05}, replicas)] * count


def test_which_rank_is_slow():
    """A tenth above the others' median for a replica, over 50 steps; neither noise nor a rank with more replicas."""
    usual = {rank: steps_of(99) for rank in range(3)}
    assert slow_rank(usual | {3: steps_of(119)}) == Slow(3, "forward", pytest.approx(0.06), pytest.approx(0.05))
    for other in (steps_of(108), steps_of(149, replicas=3), steps_of(119, count=WINDOW - 1), steps_of(119, replicas=0)):
        assert slow_rank(usual | {3: other}) is None
    noisy = [({"data": 0.001, "forward": 0.099 if step % 3 else 0.5, "reduce": 0.05}, 2) for step in range(WINDOW)]
    assert slow_rank(usual | {3: noisy}) is None  # some steps are not the median one
    half = steps_of(99, count=WINDOW // 2) + steps_of(119, count=WINDOW // 2 + 2)
    assert slow_rank(usual | {3: half}) is None  # slow for a while alone
    assert slow_rank({0: steps_of(119)}) is None
    idle = [({"forward": seconds, "reduce": 0.9}, 1) for seconds in (0.1, 0.12)]
    assert slow_rank({0: [idle[0]] * WINDOW, 1: [idle[1]] * WINDOW}) is None  # 20 of 1,020 ms
    assert slow_rank({}) is None


def test_a_slow_rank_in_words():
    """With the figure, and where the time goes."""
    assert Slow(1, "forward", 0.0125, 0.01).spell() == (
        "rank 1 is slow: 12.5 ms per replica, 25% above the other ranks' median, most of it in forward"
    )
