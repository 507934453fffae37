"""DDP over shared memory against DDP over gloo: one model, one batch, same processes, segments taken in turn.

    python benchmarks/ddp_over_shm.py [--rounds 12] [--quick] [--out DIR]

A model of 1 M parameters, 64 samples and one thread per process, 2 processes. A sample is the median time of the steps
of a segment. Both must end with the same weights, bit for bit (of two ranks a sum has one order).
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist
from harness import in_turn, join_world, leave_group, parser_of, rounds_of, save
from results import Bar, Result
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import unisono.collectives.shm.backend  # noqa: F401 - registers "shm"

STEPS, SAMPLES = 10, 64


def main() -> None:
    """Measure on this rank; the leader writes."""
    given = parser_of(__doc__, rounds=12).parse_args()
    join_world(2)
    dist.init_process_group("gloo")
    draw = torch.Generator().manual_seed(dist.get_rank())
    x, y = torch.randn(SAMPLES, 784, generator=draw), torch.randint(0, 10, (SAMPLES,), generator=draw)
    jobs = {name: Job(name) for name in ("shm", "gloo")}

    def segment(job: Job) -> float:
        return statistics.median(job.step(x, y) for _ in range(2 if given.quick else STEPS))

    times = in_turn({name: lambda job=job: segment(job) for name, job in jobs.items()}, rounds_of(given))
    same = [torch.equal(a, b) for a, b in zip(*(job.model.parameters() for job in jobs.values()), strict=True)]
    told: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(told, all(same))
    if not all(told):
        sys.exit("expected the same weights over shm and gloo, got others")
    if dist.get_rank() == 0:
        count = sum(parameter.numel() for parameter in jobs["shm"].model.parameters())
        save(
            given,
            [
                Result.of(
                    "ddp-step",
                    times["shm"],
                    against=times["gloo"],
                    peer="DDP over gloo",
                    unit="ms a step",
                    topic="Collectives",
                    what="a step of DDP over the shm backend, same weights",
                    bar=Bar(of="ratio", at_least=1.3),
                    settings={"ranks": dist.get_world_size(), "parameters": count},
                )
            ],
        )
    leave_group()


class Job:
    """A model trained with DDP over one backend."""

    def __init__(self, backend: str) -> None:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(784, 768), nn.ReLU(), nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, 10))
        group = dist.new_group(backend=backend)
        self.model = DistributedDataParallel(layers, process_group=group, gradient_as_bucket_view=True)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, foreach=True)

    def step(self, x: Tensor, y: Tensor) -> float:
        """Return the milliseconds of a step."""
        dist.barrier()
        began = time.perf_counter()
        self._optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        self._optimizer.step()
        return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
