"""Checkpoint intervals and lost work, against the papers and against chance."""

import random

import pytest

from unisono.errors import ConfigError
from unisono.scaling.failures import (
    Reliability,
    daly_interval_s,
    expected_losses,
    lost_per_failure_s,
    useful_part,
    young_interval_s,
)  # fmt: skip


def test_young_and_daly():
    """Young's square root; Daly's correction falls away for short checkpoints, and the limit is the MTBF."""
    assert young_interval_s(86400, 50) == pytest.approx((2 * 50 * 86400) ** 0.5)
    assert daly_interval_s(86400, 0.001) == pytest.approx(young_interval_s(86400, 0.001), rel=1e-3)
    assert daly_interval_s(10.0, 30.0) == 10.0


@pytest.mark.parametrize(("mtbf", "saving"), [(86400.0, 60.0), (3600.0, 120.0), (600.0, 30.0)])
def test_no_other_interval_is_better(mtbf, saving):
    """Daly's interval is where the useful part is largest, within a part in a thousand."""
    best = useful_part(mtbf, daly_interval_s(mtbf, saving), saving, 60.0)
    for factor in (0.25, 0.5, 0.8, 1.25, 2.0, 4.0):
        assert useful_part(mtbf, factor * daly_interval_s(mtbf, saving), saving, 60.0) <= best * 1.001


def test_the_expected_values_are_those_of_a_played_run():
    """A run of 200,000 segments under exponential failures: useful part and lost work within 2 %."""
    mtbf, interval, saving, restart = 600.0, 180.0, 30.0, 45.0
    draw = random.Random(7)
    now = useful = lost = 0.0
    failures = 0
    for _ in range(200_000):
        while (fails := draw.expovariate(1 / mtbf)) < interval + saving:
            now, lost, failures = now + fails, lost + fails, failures + 1
            while (again := draw.expovariate(1 / mtbf)) < restart:
                now += again
            now += restart
        now, useful = now + interval + saving, useful + interval
    assert useful / now == pytest.approx(useful_part(mtbf, interval, saving, restart), rel=0.02)
    assert lost / failures == pytest.approx(lost_per_failure_s(mtbf, interval, saving), rel=0.02)


def test_more_ranks_fail_more_often():
    """The time between failures is shared; a machine that fails before it has saved is of no use."""
    reliability = Reliability(rank_mtbf_s=50_000 * 3600.0, checkpoint_s=60.0, restart_s=300.0)
    few, many = expected_losses(8, reliability), expected_losses(16_384, reliability)
    assert many.mtbf_s == pytest.approx(few.mtbf_s / 2048)
    assert many.interval_s < few.interval_s
    assert 0.8 < many.useful < few.useful < 1
    assert many.failures_per_day == pytest.approx(16_384 * 24 / 50_000)
    hopeless = expected_losses(1 << 16, Reliability(rank_mtbf_s=3600.0, checkpoint_s=600.0, restart_s=600.0))
    assert hopeless.useful == 0.0


@pytest.mark.parametrize("wrong", [{"rank_mtbf_s": 0.0}, {"checkpoint_s": float("inf")}, {"restart_s": -1.0}])
def test_impossible_times_are_refused(wrong):
    """Each with its name or its meaning."""
    with pytest.raises(ConfigError, match="expected"):
        Reliability(**{"rank_mtbf_s": 1.0, "checkpoint_s": 1.0, "restart_s": 0.0, **wrong})
