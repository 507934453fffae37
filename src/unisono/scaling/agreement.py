"""Formulas beside the simulator, algorithm by algorithm (pure)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from unisono.collectives.schedules import Schedule, plan
from unisono.scaling.costs import ALGORITHMS
from unisono.scaling.hierarchies import hierarchical
from unisono.scaling.machine import Machine
from unisono.scaling.simulator import run_schedule

MOST_RANKS = 64
"""An all-to-all of more ranks takes the simulator longer than a user wants to wait."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """One all-reduce of one buffer, predicted and run; seconds.

    Attributes:
        ranks: Number of ranks.
        algorithm: Its name in `ALGORITHMS`.
        formula_s: By the closed formula.
        simulated_s: Run without contention: what the formula assumes.
        contention_s: Run with ports and network cards that messages wait for.
        straggler_s: The same with the last rank slower by the given factor.
    """

    ranks: int
    algorithm: str
    formula_s: float
    simulated_s: float
    contention_s: float
    straggler_s: float


def compare(num_bytes: float, machine: Machine, ranks: Sequence[int], straggler: float = 2.0) -> Iterator[Agreement]:
    """Yield a row for each algorithm that has a schedule and each number of ranks from 2 to `MOST_RANKS`.

    Args:
        num_bytes: The buffer.
        machine: What it is run on.
        ranks: Numbers of ranks; others are passed over.
        straggler: How many times slower the last rank sends and adds.
    """
    for count in ranks:
        for name in ALGORITHMS:
            schedule = _schedule(name, count, machine)
            if not 1 < count <= MOST_RANKS or schedule is None:
                continue
            here, size = machine.crowded(count), round(num_bytes)
            made = schedule()
            yield Agreement(
                ranks=count,
                algorithm=name,
                formula_s=ALGORITHMS[name](count, num_bytes, here).seconds,
                simulated_s=run_schedule(made, size, here).seconds,
                contention_s=run_schedule(made, size, here, contention=True).seconds,
                straggler_s=run_schedule(made, size, here, contention=True, slow={count - 1: straggler}).seconds,
            )


def _schedule(name: str, ranks: int, machine: Machine) -> Callable[[], Schedule] | None:
    """Return what makes the schedule, None where there is none."""
    local = min(ranks, machine.node_size)
    if name == "hierarchical":
        return (lambda: hierarchical(ranks // local, local)) if ranks % local == 0 else None
    made: Mapping[str, Callable[[], Schedule] | None] = {"hierarchical-ring": None}
    return made.get(name, lambda: plan(name, ranks))
