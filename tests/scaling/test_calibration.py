"""Fits give back what the numbers were made from."""

import pytest

from scaling.made import records
from unisono.errors import ConfigError
from unisono.scaling.calibration import Solo, StepTimes, crowding_of, fit_job, fit_line, fit_machine, step_times
from unisono.scaling.costs import owner_computes


@pytest.mark.parametrize(("at_0", "slope"), [(3.0, 0.5), (0.0, 2.0), (1e-6, 1e-9)])
def test_a_line_is_found(at_0, slope):
    """Exactly, from points on it; small values count as much as large ones."""
    points = [(x, at_0 + slope * x) for x in (1.0, 10.0, 1e6)]
    assert fit_line(points) == pytest.approx((at_0, slope), abs=1e-12)


def test_a_line_never_has_negative_parts():
    """Times that fall, or that would be below 0 at size 0, are fitted by what is possible."""
    assert fit_line([(1.0, 2.0), (2.0, 1.0)])[1] == 0.0
    at_0, slope = fit_line([(1.0, 1.0), (2.0, 3.0)])
    assert at_0 == 0.0
    assert slope > 0
    with pytest.raises(ConfigError, match="two sizes"):
        fit_line([(1.0, 1.0), (1.0, 2.0)])


def test_a_machine_gives_back_what_was_measured():
    """Between two ranks the formula of the fitted machine is the measurement; beyond the cores, at small sizes too."""
    pairs = [(size, 2e-4 + 1e-9 * size) for size in (4096.0, 1e6, 4e6)]
    crowd = [(size, 5e-3 + 3e-9 * size) for size in (4096.0, 1e6, 4e6)]
    machine = fit_machine(pairs, crowd, cores=2, crowd_ranks=4, copy_s_per_byte=2e-10, crowding=1.2)
    for size, seconds in pairs:
        assert owner_computes(2, size, machine).seconds == pytest.approx(seconds)
    for size, seconds in crowd:
        assert owner_computes(4, size, machine.crowded(4)).seconds == pytest.approx(seconds)
    assert machine.crowding == 1.2


def test_a_job_gives_back_its_steps():
    """Two sizes of micro-batches tell the fixed part from the part of a sample."""
    times = {parts: StepTimes(compute_s=parts * (0.002 + 64 / parts * 0.001), update_s=0.003, rest_s=0.001)
             for parts in (8, 2)}  # fmt: skip
    solo = Solo(batch_size=64, times=times, crowded=StepTimes(compute_s=0.1, update_s=0.003, rest_s=0.001))
    job = fit_job(solo, gradient_bytes=4e6, replicas=8)
    assert (job.micro_s, job.sample_s) == pytest.approx((0.002, 0.001))
    assert (job.update_s, job.step_s) == (0.003, 0.001)
    assert crowding_of(solo) == pytest.approx(0.1 / 0.08)


def test_steps_are_medians_after_the_warm_up():
    """In the parts that a job is made of; checkpoints are none of them."""
    times = step_times(records(1, 9, checkpoint=900) + records(1, 2, first=10, forward=900), 2)
    assert times == StepTimes(compute_s=0.031, update_s=0.002, rest_s=0.005)
    with pytest.raises(ConfigError, match="more than 5 steps"):
        step_times(records(1, 3), 5)
