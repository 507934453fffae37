"""What the stamps and records of step phases cost: the time of one step's calls, and its share of a small real step.

    python benchmarks/phase_cost.py [--rounds 3] [--quick] [--out DIR]

The calls of a step with 8 replicas on one rank are repeated by themselves (fastest of many blocks, so other programs
hardly disturb); the real step is that of a tiny network (64-64-10, batch 32, the smallest of benchmarks/overhead.py)
with one replica, fastest quarter. Written to a file in both cases.
"""

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch
from harness import parser_of, rounds_of, save
from results import Bar, Result
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.observe.phases import BACKWARD, DATA, FORWARD, OTHER, REDUCE, UPDATE, PhaseClock
from unisono.system.directory import Directory


def calls(replicas: int, blocks: int, steps: int = 200) -> float:
    """Return microseconds of all stamps and the record of one step."""
    with tempfile.TemporaryDirectory() as folder, Directory.open(Path(folder)) as place:
        clock = PhaseClock()
        clock.open(place, {"launch": 1, "rank": 0, "world_size": 1})
        found, step = [], 0
        for _ in range(blocks):
            began = time.perf_counter()
            for _ in range(steps):
                step += 1
                clock.begin(step)
                for _ in range(replicas):
                    clock.enter(DATA)
                    clock.enter(FORWARD)
                    clock.enter(BACKWARD)
                clock.enter(DATA)
                clock.enter(REDUCE)
                clock.enter(UPDATE)
                clock.enter(OTHER)
            found.append((time.perf_counter() - began) / steps * 1e6)
        clock.close()
    return min(found)


def real_step(replicas: int, epochs: int) -> float:
    """Return microseconds of a tiny step, in its fastest quarter."""
    x, y = torch.randn(9600, 64), torch.randint(0, 10, (9600,))
    ends = []
    with tempfile.TemporaryDirectory() as out, unisono.Run(replicas=replicas, out=out) as run:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
        for batch in run.steps(run.loader(unisono.ArrayDataset(x, y), batch_size=32), epochs=epochs):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            ends.append(time.perf_counter())
    return statistics.quantiles([(b - a) * 1e6 for a, b in itertools.pairwise(ends)], n=4)[0]


def main() -> None:
    given = parser_of(__doc__, rounds=3).parse_args()
    found = []
    for replicas in (1, 8):
        blocks, epochs = (3, 1) if given.quick else (60, 3)
        pairs = [(calls(replicas, blocks), real_step(replicas, epochs)) for _ in range(rounds_of(given))]
        found.append(Result.of(
            f"phases-{replicas}", [100 * stamps / step for stamps, step in pairs], unit="%", topic="Steps",
            what="stamps and records of phases, of the smallest step", bar=Bar(at_most=1),
            settings={"replicas": replicas, "µs": round(statistics.median(stamps for stamps, _ in pairs), 1)},
        ))  # fmt: skip
    save(given, found)


if __name__ == "__main__":
    main()
