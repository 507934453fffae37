"""The exact step against torch DDP with gloo: same model, same batch, same processes, segments taken in turn.

    unisono run -n 2 --output leader benchmarks/exact_vs_ddp.py

Both compute one micro-batch per process (replicas = processes), with one thread each, and both read tensors that are in
memory. Prints the median time of a step and the quartiles, and the ratio of the medians.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.data.sets.texts import PackedTexts, pack
from unisono.recipes.gated_cnn import GatedCNN
from unisono.recipes.mnist import SimpleCNN

NUM_SEGMENTS, STEPS = 6, 8


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1024),
                         nn.ReLU(), nn.Linear(1024, 10))  # fmt: skip


def texts(num_samples: int) -> PackedTexts:
    return pack([torch.randint(2, 13352, (300,)).int().numpy() for _ in range(num_samples)])


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], object], int]] = {
    "SimpleCNN 0.4 M": (SimpleCNN, lambda n: torch.randn(n, 1, 28, 28), 10),
    "GatedCNN 1.1 M": (lambda: GatedCNN(13352), texts, 2),
    "MLP 7.9 M": (mlp, lambda n: torch.randn(n, 784), 10),
}


def main() -> None:
    """Measure every job on this rank; the leader prints."""
    run = unisono.Run(seed=0)
    size, rank = run.world.world_size, run.world.rank
    batch = 128
    print_row("model", "exact ms", "DDP gloo ms", "DDP / exact")
    for name, (build, make, classes) in JOBS.items():
        share = batch // size
        torch.manual_seed(rank)
        x, y = make(share), torch.randint(0, classes, (share,))
        torch.manual_seed(0)
        exact = exact_step(run, build(), x, y, batch)
        torch.manual_seed(0)
        ddp = ddp_step(build(), x, y)
        times: dict[str, list[float]] = {"exact": [], "ddp": []}
        for segment in range(NUM_SEGMENTS + 1):
            for kind, step in (("exact", exact), ("ddp", ddp)):
                for _ in range(STEPS):
                    run.transport.barrier()
                    started = time.perf_counter()
                    step()
                    if segment:  # the first one warms up
                        times[kind].append((time.perf_counter() - started) * 1e3)
        ratio = statistics.median(times["ddp"]) / statistics.median(times["exact"])
        print_row(name, spread(times["exact"]), spread(times["ddp"]), f"{ratio:.2f}")


def exact_step(run: unisono.Run, model: nn.Module, x: object, y: Tensor, batch: int) -> Callable[[], None]:
    from unisono.strategies.base import Micro, StrategyContext
    from unisono.strategies.exact import Exact
    from unisono.strategies.options import ExactOptions

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, foreach=True)
    placement = [range(rank, rank + 1) for rank in range(run.world.world_size)]
    context = StrategyContext(transport=run.transport, placement=placement, seed=0, device=run.device)
    strategy = Exact(model, optimizer, context, ExactOptions())
    counter = iter(range(1, 10**9))

    def step() -> None:
        micro = Micro(replica=run.world.rank, num_samples=len(y), data=(x, y))
        strategy.compute_gradients(next(counter), [micro], batch, lambda data: F.cross_entropy(model(data[0]), data[1]))
        optimizer.step()

    return step


def ddp_step(model: nn.Module, x: object, y: Tensor) -> Callable[[], None]:
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()

    return step


def spread(times: list[float]) -> str:
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle:.1f} ({low:.1f}-{high:.1f})"


def print_row(*cells: str) -> None:
    if dist.get_rank() == 0:
        print("".join(f"{cell:<22}" for cell in cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
