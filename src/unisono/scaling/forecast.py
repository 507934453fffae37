"""What a training step takes on 1 to 65,536 ranks, by which algorithm, and why (pure).

A step is the longest of compute and data, then what is left of the communication after overlap, then the update. Ranks
of a synchronous strategy wait for the slowest: the expected largest of n normal times, by the approximation of Blom,
"Statistical estimates and transformed beta-variables" (1958). How parts are measured stands in `calibration`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import final

from unisono.collectives.placement import place_evenly
from unisono.collectives.tree import owned_nodes
from unisono.errors import ConfigError
from unisono.options.fields import check, option
from unisono.options.quantities import BATCH, FRACTION, JITTER, RANKS, RATE, REPLICAS, STEPS, Amount
from unisono.scaling.costs import ALGORITHMS, Cost, asynchronous_cycle_s, owner_computes, parameter_server
from unisono.scaling.failures import Losses, Reliability, expected_losses
from unisono.scaling.machine import COST, TIME, Machine

MOST_RANKS = 1 << 16
SYNCHRONOUS = (*(name for name in ALGORITHMS if name != "naive-ring"), "ps")
STRATEGIES = (*ALGORITHMS, "ps", "ps-async")
"""Everything that can be forecast."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What is trained."""

    gradient_bytes: float = option(text="Bytes reduced in a step.", of=Amount(0, 2e18, "bytes"))
    batch_size: int = option(text="Samples of a step over all ranks; with `weak`, of each rank.", of=BATCH)
    sample_s: float = option(text="Forward and backward of one sample on a rank that is alone.", of=TIME)
    micro_s: float = option(0.0, "Fixed part of a forward and backward, whatever its samples.", of=TIME)
    update_s: float = option(0.0, "Clipping and optimizer, on every rank.", of=TIME)
    step_s: float = option(0.0, "Everything else that a step costs on every rank: ledger, checks, loop.", of=TIME)
    replicas: int | None = option(
        None,
        "Micro-batches that the batch is cut into (with `weak`, of each rank); None: one for each rank.",
        of=REPLICAS,
    )
    jitter: float = option(0.0, "Standard deviation of a rank's compute time over its mean.", of=JITTER)
    overlap: float = option(
        0.0,
        "Part of the backward pass, taken as two thirds of compute, beside which communication can go on.",
        of=FRACTION,
    )
    data_samples_per_s: float | None = option(
        None, "What storage and loaders give to all ranks together; None: enough.", of=RATE
    )
    servers: int = option(1, "Parameter servers.", of=RANKS)
    launch_s: float = option(0.0, "From the start of the launch to the first step.", of=TIME)
    launch_rank_s: float = option(0.0, "More of it for each rank.", of=TIME)
    steps: int | None = option(None, "Of the whole run, for launch and failures; None: a run without end.", of=STEPS)
    messages: int = option(0, "Collectives of small control messages in a step.", of=COST)
    weak: bool = option(False, "The batch grows with the ranks.")

    def __post_init__(self) -> None:
        check(self)
        if not self.sample_s + self.micro_s > 0:
            raise ConfigError("expected a compute time above 0 for a sample or a micro-batch.")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One strategy on one number of ranks."""

    ranks: int  #: Ranks that compute; servers come on top.
    strategy: str  #: One of `STRATEGIES`.
    #: Time between two updates; of ``ps-async``, in which as many samples are used as in a synchronous step.
    step_s: float
    compute_s: float  #: Forward and backward of the average rank.
    wait_s: float  #: More of it on the slowest rank.
    data_s: float  #: Waiting for data beyond that.
    communication_s: float  #: What of the communication is not hidden behind the backward pass.
    update_s: float  #: Optimizer, and what a step costs whatever the ranks.
    samples_per_s: float  #: Throughput.
    speedup: float  #: Throughput over that of one rank.
    efficiency: float  #: Speed-up over ranks.
    sent_bytes: float  #: Of the busiest rank or server in a step.
    #: What takes most of the time: ``compute``, ``stragglers``, ``data``, ``communication``, ``update``; or ``batch``
    #: where ranks have nothing to compute.
    limit: str


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """All strategies on one number of ranks."""

    ranks: int  #: Ranks that compute.
    predictions: tuple[Prediction, ...]  #: In the order of `STRATEGIES`.
    best: str  #: The fastest synchronous strategy.
    losses: Losses | None = None  #: What failures cost; None where nothing is known of them.
    #: The whole run with the best strategy, launch and failures included; None for a run without end.
    run_s: float | None = None
    idle: int = 0  #: Ranks without a sample or replica.

    def of(self, strategy: str) -> Prediction:
        """Return the prediction of one strategy."""
        return next(one for one in self.predictions if one.strategy == strategy)


def largest_of(ranks: int) -> float:
    """Return the expected largest of so many standard normal numbers: ``inverse((n - 0.375) / (n + 0.25))``."""
    return 0.0 if ranks == 1 else NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def compute_s(job: Workload, machine: Machine, ranks: int) -> float:
    """Return forward and backward of the rank with most work, in seconds.

    Where ranks share cores, one core has ``ceil(ranks / cores)`` of them: within a step they hardly move.
    """
    batch = _batch(job, ranks)
    replicas = min((job.replicas or 1) * ranks if job.weak else (job.replicas or ranks), batch)
    active = min(ranks, replicas)
    micro_s = job.micro_s + batch / replicas * job.sample_s
    hosted = -(-replicas // active)
    if machine.cores is None:
        return hosted * micro_s
    local = min(active, machine.node_size)
    busy_s = micro_s * machine.slowdown(min(local, machine.cores))
    return hosted * -(-local // machine.cores) * busy_s


def sums_of(replicas: int, ranks: int) -> int:
    """Return the most sums that a rank sends: the subtrees of the canonical tree that its replicas are."""
    placement = tuple(place_evenly(replicas, min(replicas, ranks)))
    return max(len(found) for found in owned_nodes(placement, replicas))


def predict(job: Workload, machine: Machine, ranks: int, strategy: str) -> Prediction:
    """Return what a step takes."""
    _check(ranks, strategy)
    batch, own_s = _batch(job, ranks), compute_s(job, machine, ranks)
    slow = machine.slowdown(ranks)
    update_s = (job.update_s + job.step_s) * slow
    machine = machine.crowded(ranks)
    small = ALGORITHMS["owner-computes"](ranks, 0.0, machine).seconds / 2 * job.messages
    if strategy == "ps-async":
        wait_s = 0.0
        cycle_s = asynchronous_cycle_s(ranks, own_s + update_s, job.gradient_bytes, machine, job.servers)
        total_s = 2 * job.gradient_bytes  # push and pull
        exposed_s, sent = max(0.0, cycle_s - own_s - update_s), max(total_s, ranks * total_s / job.servers)
    else:
        wait_s = own_s * job.jitter * largest_of(ranks)
        cost = _cost(job, machine, ranks, strategy)
        exposed_s = small + max(0.0, cost.seconds - job.overlap * own_s * 2 / 3)
        sent = cost.sent_bytes
    feed_s = 0.0 if job.data_samples_per_s is None else batch / job.data_samples_per_s
    data_s = max(0.0, feed_s - own_s - wait_s)
    step_s = own_s + wait_s + data_s + exposed_s + update_s
    alone_s = step_s if ranks == 1 and strategy in ALGORITHMS else _alone_s(job, machine)
    speedup = batch / step_s * alone_s / _batch(job, 1)
    parts = {"stragglers": wait_s, "data": data_s, "communication": exposed_s, "update": update_s}
    worst = max(parts, key=lambda name: parts[name])
    return Prediction(
        ranks=ranks, strategy=strategy, step_s=step_s, compute_s=own_s, wait_s=wait_s, data_s=data_s,
        communication_s=exposed_s, update_s=update_s, samples_per_s=batch / step_s, speedup=speedup,
        efficiency=speedup / ranks, sent_bytes=sent,
        limit="batch" if _idle(job, ranks) else worst if parts[worst] > own_s else "compute",
    )  # fmt: skip


def forecast(
    job: Workload, machine: Machine, ranks: Sequence[int], reliability: Reliability | None = None
) -> list[Forecast]:
    """Return all strategies on each number of ranks."""
    if not ranks:
        raise ConfigError("expected at least one number of ranks, got none. Hint: --ranks 1,8,64.")
    found = []
    for count in ranks:
        predictions = tuple(predict(job, machine, count, strategy) for strategy in STRATEGIES)
        best = min((one for one in predictions if one.strategy in SYNCHRONOUS), key=lambda one: one.step_s)
        losses = None if reliability is None else expected_losses(count, reliability)
        launch_s = job.launch_s + job.launch_rank_s * count
        run_s = None
        if job.steps is not None:
            training_s = job.steps * best.step_s
            run_s = launch_s + (training_s if losses is None else training_s / losses.useful if losses.useful else
                                math.inf)  # fmt: skip
        found.append(Forecast(
            ranks=count, predictions=predictions, best=best.strategy, losses=losses, run_s=run_s,
            idle=_idle(job, count),
        ))  # fmt: skip
    return found


def _batch(job: Workload, ranks: int) -> int:
    return job.batch_size * ranks if job.weak else job.batch_size


def _idle(job: Workload, ranks: int) -> int:
    parts = ranks if job.weak or not job.replicas else job.replicas
    return max(0, ranks - min(_batch(job, ranks), parts))


def _alone_s(job: Workload, machine: Machine) -> float:
    own_s = compute_s(job, machine, 1)
    feed_s = 0.0 if job.data_samples_per_s is None else job.batch_size / job.data_samples_per_s
    return max(own_s, feed_s) + job.update_s + job.step_s


def _cost(job: Workload, machine: Machine, ranks: int, strategy: str) -> Cost:
    if strategy == "ps":
        return parameter_server(ranks, job.gradient_bytes, machine, job.servers)
    if strategy == "owner-computes" and job.replicas and not job.weak:
        return owner_computes(ranks, job.gradient_bytes, machine, sums_of(job.replicas, ranks))
    formula: Callable[[int, float, Machine], Cost] = ALGORITHMS[strategy]
    return formula(ranks, job.gradient_bytes, machine)


def _check(ranks: int, strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise ConfigError(f"expected a strategy of {', '.join(STRATEGIES)}; got {strategy!r}.")
    if not 1 <= ranks <= MOST_RANKS:
        raise ConfigError(f"expected 1 to {MOST_RANKS} ranks, got {ranks}.")
