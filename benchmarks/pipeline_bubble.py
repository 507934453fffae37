"""The bubble of a pipeline: measured idle share beside (p - 1) / (v m + p - 1), for each schedule.

    python benchmarks/pipeline_bubble.py [-n 2] [--rounds 3] [--quick] [--out DIR]

Stages of equal cost: square linear layers, one pipeline over all processes, one thread each, micro-batches of 64
samples. Idle is the time in which a process does not compute, messages included, from its first move of a step to the
last move of the slowest process.
"""

import statistics
import time

import torch
from harness import in_turn, join_world, parser_of, rounds_of, save
from results import Result
from torch import nn
from torch.nn import functional as F

import unisono

STEPS, WIDTH, SAMPLES = 3, 512, 64
MICROS = (2, 4, 8, 16)


def main() -> None:
    """Measure every setting on this rank; the leader writes."""
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("-n", type=int, default=2, help="processes (2)")
    given = parser.parse_args()
    join_world(given.n)
    world = unisono.World.current()
    p, width = world.world_size, 32 if given.quick else WIDTH
    settings = {f"{schedule}-{m}": (schedule, m) for schedule in ("gpipe", "1f1b", "interleaved")
                for m in (MICROS[:1] if given.quick else MICROS)}  # fmt: skip
    ways = {key: lambda setting=setting: measure(world, width, *setting) for key, setting in settings.items()}
    times = in_turn(ways, rounds_of(given))
    if world.is_leader:
        save(given, [Result.of(
            key, [100 * idle for idle, _, _ in times[key]], what=f"idle share of a pipeline, {schedule}", unit="%",
            topic="Steps", settings={
                "processes": p, "micro-batches": m, "by formula, %": round(100 * times[key][0][1], 1),
                "samples/s": round(statistics.median(rate for _, _, rate in times[key])),
            },
        ) for key, (schedule, m) in settings.items()])  # fmt: skip


def measure(world: unisono.World, width: int, schedule: str, m: int) -> tuple[float, float, float]:
    """Return idle share, idle share by formula, and samples a second of a short run."""
    p = world.world_size
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(4 * p)])
    count = STEPS * SAMPLES * m
    data = unisono.ArrayDataset(torch.randn(count, width), torch.randint(0, width, (count,)))
    with unisono.Run(seed=0, replicas=m, strategy=unisono.strategy("pipeline", stages=p, schedule=schedule)) as run:
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
        began = time.perf_counter()
        for batch in run.steps(run.loader(data, batch_size=SAMPLES * m), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        taken = time.perf_counter() - began
        told = run.result()
    return told["idle_share"], told["idle_share_by_formula"], count / taken


if __name__ == "__main__":
    main()
