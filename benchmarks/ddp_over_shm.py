"""DDP over shared memory against DDP over gloo: one model, one batch, same processes, segments taken in turn.

    unisono run -n 2 --output leader benchmarks/ddp_over_shm.py [--json]

A model of 1 M parameters, 64 samples and one thread per process. Prints the median time of a step and the quartiles,
the ratio of the medians, and whether both ended with the same weights, bit for bit (of two ranks a sum has one order).
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from unisono.collectives.shm import backend

NUM_SEGMENTS, STEPS, SAMPLES = 12, 10, 64


def main() -> None:
    """Measure on this rank; the leader prints."""
    dist.init_process_group("gloo")
    draw = torch.Generator().manual_seed(dist.get_rank())
    x, y = torch.randn(SAMPLES, 784, generator=draw), torch.randint(0, 10, (SAMPLES,), generator=draw)
    jobs = {name: Job(name) for name in (backend.NAME, "gloo")}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for segment in range(NUM_SEGMENTS + 1):
        for name, job in jobs.items() if segment % 2 else reversed(jobs.items()):
            for _ in range(STEPS):
                dist.barrier()
                began = time.perf_counter()
                job.step(x, y)
                if segment:  # the first one warms up
                    times[name].append((time.perf_counter() - began) * 1e3)
    same = [torch.equal(a, b) for a, b in zip(*(job.model.parameters() for job in jobs.values()), strict=True)]
    told: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(told, all(same))
    if dist.get_rank() == 0:
        medians = {name: statistics.median(found) for name, found in times.items()}
        ratio = medians["gloo"] / medians["shm"]
        count = sum(parameter.numel() for parameter in jobs["shm"].model.parameters())
        if "--json" in sys.argv:
            print(json.dumps({**medians, "ratio": ratio, "same": all(told), "parameters": count}))
            return
        for name, found in times.items():
            low, middle, high = statistics.quantiles(found, n=4)
            print(f"DDP over {name:<5} {middle:6.2f} ms a step ({low:.2f}-{high:.2f})")
        print(f"{count} parameters, {dist.get_world_size()} ranks: {ratio:.2f} times faster, same weights: {all(told)}")


class Job:
    """A model trained with DDP over one backend."""

    def __init__(self, backend: str) -> None:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(784, 768), nn.ReLU(), nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, 10))
        group = dist.new_group(backend=backend)
        self.model = DistributedDataParallel(layers, process_group=group, gradient_as_bucket_view=True)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, foreach=True)

    def step(self, x: Tensor, y: Tensor) -> None:
        self._optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        self._optimizer.step()


if __name__ == "__main__":
    main()
