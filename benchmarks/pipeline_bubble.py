"""The bubble of a pipeline: measured idle share beside (p - 1) / (v m + p - 1), for each schedule.

    unisono run -n 2 --output leader benchmarks/pipeline_bubble.py

Stages of equal cost: square linear layers, one pipeline over all processes, one thread each, micro-batches of 64
samples. Every setting is measured once a round, in turn; prints the median and the range over the rounds. Idle is the
time in which a process does not compute, messages included, from its first move of a step to the last move of the
slowest process.
"""

import statistics
import sys

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.collectives.placement import cut
from unisono.strategies.base import Micro, StrategyContext
from unisono.strategies.pipelines.options import PipelineOptions
from unisono.strategies.pipelines.pipeline import Pipeline

ROUNDS, STEPS, WIDTH, SAMPLES = 3, 2, 512, 64
MICROS = (2, 4, 8, 16)


def main() -> None:
    """Measure every setting on this rank; the leader prints."""
    run = unisono.Run(seed=0)
    p = run.world.world_size
    settings = [(schedule, m) for schedule in ("gpipe", "1f1b", "interleaved") for m in MICROS]
    idle: dict[tuple[str, int], list[float]] = {setting: [] for setting in settings}
    speed: dict[tuple[str, int], list[float]] = {setting: [] for setting in settings}
    formula: dict[tuple[str, int], float] = {}
    for _ in range(ROUNDS):
        for setting in settings:
            measured, expected, samples_per_s = measure(run, p, *setting)
            idle[setting].append(measured)
            speed[setting].append(samples_per_s)
            formula[setting] = expected
    if run.world.is_leader:
        print(f"{p} processes, {ROUNDS} rounds of {STEPS} steps")
        print(f"{'schedule':<12} {'m':>3} {'by formula':>11} {'idle, median (range)':>28} {'samples/s':>10}")
        for (schedule, m), shares in idle.items():
            told = f"{statistics.median(shares):.1%} ({min(shares):.1%}-{max(shares):.1%})"
            rate = statistics.median(speed[schedule, m])
            print(f"{schedule:<12} {m:>3} {formula[schedule, m]:>11.1%} {told:>28} {rate:>10,.0f}")


def measure(run: unisono.Run, p: int, schedule: str, m: int) -> tuple[float, float, float]:
    options = PipelineOptions(stages=p, schedule=schedule)
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4 * p)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    placement = options.place(m, p)
    strategy = Pipeline(
        model,
        optimizer,
        StrategyContext(transport=run.transport, placement=placement, seed=0, device=run.device),
        options,
    )
    front = strategy.front
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(0, WIDTH, (SAMPLES,))
    sizes = [len(part) for part in cut(SAMPLES * m, m)]

    def step(number: int) -> None:
        mine = [Micro(replica=r, num_samples=sizes[r], data=(x, y)) for r in placement[run.world.rank]]
        run.transport.barrier()
        strategy.compute_gradients(number, mine, SAMPLES * m, lambda data: F.cross_entropy(front(data[0]), data[1]))

    step(1)
    strategy.times.busy_s = strategy.times.span_s = strategy.times.bubble_s = 0.0
    for number in range(STEPS):
        step(2 + number)
    times = strategy.times
    return 1 - times.busy_s / times.span_s, times.bubble_s / times.span_s, STEPS * SAMPLES * m / times.span_s


if __name__ == "__main__":
    sys.exit(main())
