"""Forecasts of whole steps: limits, Amdahl, sharing, failures, 65,536 ranks."""

import math
import time
from dataclasses import replace

import pytest

from unisono.errors import ConfigError
from unisono.scaling.failures import Reliability
from unisono.scaling.forecast import STRATEGIES, Workload, compute_s, forecast, largest_of, predict
from unisono.scaling.machine import Link, Machine

SLOW = Link(latency_s=5e-6, s_per_byte=1 / 50e9, overhead_s=1e-6)
FAST = Link(latency_s=2e-6, s_per_byte=1 / 450e9, overhead_s=5e-7)
FREE = Link(latency_s=0.0, s_per_byte=0.0)
NODES = Machine(inside=FAST, between=SLOW, node_size=8, nics=8, add_s_per_byte=1e-12)
IDEAL = Machine(inside=FREE, between=FREE)
JOB = Workload(gradient_bytes=1e9, batch_size=4096, sample_s=0.01)


def test_an_ideal_machine_scales_ideally():
    """Without communication the speed-up is the number of ranks, until samples run out."""
    for ranks in (1, 2, 8, 4096):
        assert predict(JOB, IDEAL, ranks, "ring").efficiency == pytest.approx(1.0)
    found = forecast(JOB, IDEAL, [8192])[0]
    assert found.idle == 4096
    assert found.of("ring").efficiency == pytest.approx(0.5)


def test_a_fixed_part_bounds_the_speedup():
    """Amdahl: an update of 1 % of the step allows at most 100 times."""
    job = replace(JOB, batch_size=99, update_s=0.01)
    assert predict(job, IDEAL, 99, "ring").speedup == pytest.approx(1.0 / (0.01 + 0.01))


def test_parts_add_up_and_the_limit_is_named():
    """A step is the sum of its parts; what takes most beyond compute is said."""
    job = replace(JOB, jitter=0.05, update_s=0.001, data_samples_per_s=1e5)
    for strategy in STRATEGIES:
        one = predict(job, NODES, 256, strategy)
        parts = one.compute_s + one.wait_s + one.data_s + one.communication_s + one.update_s
        assert one.step_s == pytest.approx(parts)
        assert one.samples_per_s == pytest.approx(4096 / one.step_s)
    assert predict(replace(JOB, data_samples_per_s=100.0), NODES, 64, "ring").limit == "data"
    assert predict(replace(JOB, gradient_bytes=1e12), NODES, 64, "ring").limit == "communication"
    assert predict(JOB, NODES, 8, "ring").limit == "compute"


def test_overlap_hides_communication_and_no_more():
    """At most two thirds of compute; never below nothing."""
    plain, hidden = (
        predict(JOB, NODES, 64, "hierarchical"),
        predict(replace(JOB, overlap=1.0), NODES, 64, "hierarchical"),
    )
    assert plain.communication_s > 0
    assert hidden.communication_s == 0
    assert hidden.step_s < plain.step_s


def test_replicas_are_placed_whole():
    """8 micro-batches on 3 ranks: the fullest computes 3 of them; on 2 cores one has two of them."""
    job = Workload(gradient_bytes=1.0, batch_size=64, sample_s=1e-3, micro_s=2e-3, replicas=8)
    assert compute_s(job, IDEAL, 3) == pytest.approx(3 * 0.010)
    box = Machine(inside=FREE, between=FREE, node_size=64, cores=2, crowding=1.2)
    assert compute_s(job, box, 1) == pytest.approx(8 * 0.010)
    assert compute_s(job, box, 2) == pytest.approx(4 * 0.010 * 1.2)
    assert compute_s(job, box, 3) == pytest.approx(6 * 0.010 * 1.2)
    assert compute_s(job, box, 8) == pytest.approx(4 * 0.010 * 1.2)


def test_weak_scaling_grows_the_batch():
    """Each rank keeps its batch: on an ideal machine steps take the same time and throughput grows."""
    one, many = (predict(replace(JOB, weak=True), IDEAL, ranks, "tree") for ranks in (1, 512))
    assert many.step_s == pytest.approx(one.step_s)
    assert many.efficiency == pytest.approx(1.0)


def test_synchronous_ranks_wait_for_the_slowest():
    """More ranks, a later last one; asynchronous ones wait for nobody."""
    job = replace(JOB, jitter=0.1)
    assert largest_of(1) == 0.0
    assert largest_of(100) == pytest.approx(2.5, abs=0.02)  # tables of normal order statistics: 2.508
    waits = [
        predict(job, IDEAL, ranks, "ring").wait_s / predict(job, IDEAL, ranks, "ring").compute_s for ranks in (2, 64)
    ]
    assert waits[0] < waits[1]
    assert predict(job, IDEAL, 64, "ps-async").wait_s == 0


def test_failures_and_launch_make_runs_longer():
    """A run with failures takes its training over its useful part, and the launch."""
    job = replace(JOB, steps=1000, launch_s=10.0, launch_rank_s=0.01)
    reliability = Reliability(rank_mtbf_s=50_000 * 3600.0, checkpoint_s=60.0, restart_s=300.0)
    calm, rough = forecast(job, NODES, [4096])[0], forecast(job, NODES, [4096], reliability)[0]
    training_s = 1000 * calm.of(calm.best).step_s
    assert calm.run_s == pytest.approx(training_s + 10 + 40.96)
    assert rough.run_s == pytest.approx(training_s / rough.losses.useful + 50.96)
    hopeless = Reliability(rank_mtbf_s=60.0, checkpoint_s=60.0, restart_s=300.0)
    assert forecast(job, NODES, [4096], hopeless)[0].run_s == math.inf


def test_65536_ranks_are_forecast_at_once():
    """All strategies on every number of ranks to 1,000 and on 65,536: closed formulas need no machine."""
    began = time.process_time()
    found = forecast(JOB, NODES, [*range(1, 1001), 65_536])
    assert time.process_time() - began < 5
    assert found[-1].best in STRATEGIES
    assert found[-1].of(found[-1].best).step_s == min(one.step_s for one in found[-1].predictions if one.strategy
                                                      not in ("ps-async", "naive-ring"))  # fmt: skip


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"sample_s": 0.0}, {"overlap": 2.0}, {"data_samples_per_s": 0.0}, {"jitter": -1.0}]
)
def test_impossible_jobs_are_refused(wrong):
    """Every number has its bounds."""
    with pytest.raises(ConfigError, match="expected"):
        replace(JOB, **wrong)


def test_impossible_questions_are_refused():
    """No ranks, too many, an unknown strategy."""
    with pytest.raises(ConfigError, match="at least one"):
        forecast(JOB, NODES, [])
    with pytest.raises(ConfigError, match="65536"):
        predict(JOB, NODES, 1 << 17, "ring")
    with pytest.raises(ConfigError, match="rign"):
        predict(JOB, NODES, 2, "rign")
