"""From a few short measurements to the numbers of a `Machine` and a `Workload` (pure).

What is measured: a step on one rank with two sizes of micro-batches; the same on all cores at once; the all-reduce
between 2 ranks, and between twice as many ranks as cores, for some sizes. No step of several ranks is looked at: those
are what is forecast.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from unisono.errors import ConfigError
from unisono.observe.phases import StepPhases
from unisono.scaling.forecast import Workload
from unisono.scaling.machine import Link, Machine

EVERYWHERE = 1 << 16
"""Ranks of a node for a machine that is one host."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """A step of one rank that is alone; medians in seconds."""

    compute_s: float  #: Data, forward and backward of all micro-batches.
    update_s: float  #: The optimizer.
    rest_s: float  #: All else: the exchange of one rank with nobody, the ledger, the loop.


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Solo:
    """What was measured on one rank at a time."""

    batch_size: int  #: Samples of a step.
    times: Mapping[int, StepTimes]  #: By number of micro-batches: two numbers at least.
    crowded: StepTimes | None  #: The same as the first of `times`, while all cores do it; None where there is one core.


def step_times(records: Sequence[StepPhases], warmup: int) -> StepTimes:
    """Return the medians of one rank's step phases."""
    kept = sorted(records, key=lambda record: record.step)[warmup:]
    if not kept:
        raise ConfigError(f"expected more than {warmup} steps to calibrate with, got {len(records)}.")

    def median_s(*phases: str) -> float:
        return statistics.median(sum(record.ns.get(phase, 0) for phase in phases) for record in kept) / 1e9

    return StepTimes(
        compute_s=median_s("data", "forward", "backward"), update_s=median_s("update"),
        rest_s=median_s("reduce", "other"),
    )  # fmt: skip


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (at 0, slope), both at least 0, with the least sum of squared *relative* errors."""
    if len({x for x, _ in points}) < 2 or any(not y > 0 for _, y in points):
        raise ConfigError(f"expected times above 0 at two sizes or more to fit a line, got {list(points)}.")
    weights = [1 / y**2 for _, y in points]
    total = math.fsum(weights)
    mean_x = math.fsum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = math.fsum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    above = math.fsum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True))
    below = math.fsum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = above / below
    if slope <= 0:  # no dependence that could be seen
        return math.fsum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total, 0.0
    if mean_y - slope * mean_x >= 0:
        return mean_y - slope * mean_x, slope
    through = math.fsum(w * x * y for w, (x, y) in zip(weights, points, strict=True))
    return 0.0, through / math.fsum(w * x * x for w, (x, _) in zip(weights, points, strict=True))


def fit_machine(
    pairs: Sequence[tuple[float, float]], crowd: Sequence[tuple[float, float]], *, cores: int, crowd_ranks: int,
    copy_s_per_byte: float, crowding: float,
) -> Machine:  # fmt: skip
    """Return this host as a machine, from all-reduces by owner-computes.

    Args:
        pairs: (bytes, seconds) between 2 ranks.
        crowd: The same between `crowd_ranks`.
        cores: Of the host.
        crowd_ranks: More ranks than cores.
        copy_s_per_byte: Of a plain copy in memory: taken for what adding a byte costs.
        crowding: Times slower that a rank computes when all cores are busy.
    """
    fixed_s, slope = fit_line(pairs)
    # 2 ranks: 2 alpha + S (beta + gamma / 2); see `costs.owner_computes`.
    gamma = min(copy_s_per_byte, slope)
    latency_s = fixed_s / 2
    link = Link(latency_s=latency_s, s_per_byte=max(0.0, slope - gamma / 2))
    turns = crowd_ranks / cores
    crowd_fixed_s, crowd_slope = fit_line(crowd)
    part = (crowd_ranks - 1) / crowd_ranks
    expected = turns * part * (2 * link.s_per_byte + gamma)
    factor = crowd_slope / expected if turns > 1 and expected > 0 and crowd_slope > 0 else 1.0
    turn_s = max(0.0, crowd_fixed_s / 2 - latency_s) / (turns - 1) if turns > 1 else 0.0
    return Machine(
        inside=link, between=link, node_size=EVERYWHERE, nics=EVERYWHERE, add_s_per_byte=gamma, cores=cores,
        crowding=max(1.0, crowding), turn_s=turn_s, turn_factor=factor,
    )  # fmt: skip


def fit_job(solo: Solo, *, gradient_bytes: float, replicas: int) -> Workload:
    """Return the job, from steps of one rank."""
    points = [(solo.batch_size / parts, times.compute_s / parts) for parts, times in solo.times.items()]
    micro_s, sample_s = fit_line(points)
    nearest = solo.times[min(solo.times, key=lambda parts: abs(parts - replicas))]
    return Workload(
        gradient_bytes=gradient_bytes, batch_size=solo.batch_size, sample_s=sample_s, micro_s=micro_s,
        update_s=nearest.update_s, step_s=nearest.rest_s, replicas=replicas, messages=1,
    )  # fmt: skip


def crowding_of(solo: Solo) -> float:
    """Return how many times slower a rank computes when all cores are busy; at least 1."""
    if solo.crowded is None:
        return 1.0
    return max(1.0, solo.crowded.compute_s / next(iter(solo.times.values())).compute_s)
