"""The exact step against torch DDP with gloo: same model, same batch, same processes, segments taken in turn.

    python benchmarks/exact_vs_ddp.py [--rounds 6] [--only NAME] [--quick] [--out DIR]

Both compute one micro-batch per process (replicas = processes), 2 processes with one thread each, and both read tensors
that are in memory. A sample is the median time of the steps of a segment. ResNet-18 is that of its paper (He et al.,
2015) for pictures of 64 x 64, with batch statistics of each process on both sides, as DDP has them.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from harness import in_turn, join_world, leave_group, parser_of, rounds_of, save, slug
from results import Bar, Result
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.data.sets.texts import PackedTexts, pack
from unisono.recipes.gated_cnn import GatedCNN
from unisono.recipes.mnist import SimpleCNN

STEPS = 8


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1024),
                         nn.ReLU(), nn.Linear(1024, 10))  # fmt: skip


def texts(num_samples: int) -> PackedTexts:
    return pack([torch.randint(2, 13352, (300,)).int().numpy() for _ in range(num_samples)])


class Block(nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.past = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.past = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.past(x))


def resnet_18() -> nn.Module:
    widths = (64, 64, 128, 256, 512)
    blocks = [
        Block(inputs if first else outputs, outputs, 2 if first and inputs != outputs else 1)
        for inputs, outputs in pairwise(widths)
        for first in (True, False)
    ]
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], object], int, int]] = {
    "SimpleCNN 0.4 M": (SimpleCNN, lambda n: torch.randn(n, 1, 28, 28), 10, 128),
    "GatedCNN 1.1 M": (lambda: GatedCNN(13352), texts, 2, 128),
    "MLP 7.9 M": (mlp, lambda n: torch.randn(n, 784), 10, 128),
    "ResNet-18 11.2 M": (resnet_18, lambda n: torch.randn(n, 3, 64, 64), 10, 32),
}
"""A model, data, classes, samples of a batch."""


class Ready:
    """One micro-batch that is in memory, whatever is asked for."""

    def __init__(self, x: Any, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return self.x, self.y

    def fetch_micro_batch(self, indices: object) -> tuple[Any, Tensor]:
        return self.x, self.y


def main() -> None:
    """Measure every job on this rank; the leader writes."""
    parser = parser_of(__doc__, rounds=6)
    parser.add_argument("--only", default="", metavar="NAME", help="the job whose name has this in it (all)")
    given = parser.parse_args()
    join_world(2)
    dist.init_process_group("gloo")
    size, found = dist.get_world_size(), []
    for name in [name for name in JOBS if given.only in name][: 2 if given.quick else None]:
        build, make, classes, batch = JOBS[name]
        share = (8 if given.quick else batch) // size
        torch.manual_seed(0)  # data of one fingerprint on all ranks
        x, y = make(share), torch.randint(0, classes, (share,))
        with unisono.Run(seed=0, replicas=size) as run:
            steps = {"exact": exact_step(run, build(), x, y), "ddp": ddp_step(build(), x, y)}
            count = 1 if given.quick else STEPS
            ways = {kind: partial(segment, step, count) for kind, step in steps.items()}
            times = in_turn(ways, rounds_of(given))
        found.append(
            Result.of(
                slug(name),
                times["exact"],
                against=times["ddp"],
                peer="DDP over gloo",
                unit="ms a step",
                topic="Steps",
                what=f"a step of Run, {name}",
                bar=Bar(of="ratio", at_least=1),
                settings={"ranks": size, "batch": share * size},
            )
        )
    if dist.get_rank() == 0:
        save(given, found)
    leave_group()


def segment(step: Callable[[], object], count: int) -> float:
    """Return the median milliseconds of steps that all ranks begin together."""
    taken = []
    for _ in range(count):
        dist.barrier()
        began = time.perf_counter()
        step()
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


def exact_step(run: unisono.Run, model: nn.Module, x: Any, y: Tensor) -> Callable[[], object]:
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, foreach=True))
    batches = run.steps(run.loader(Ready(x, y), batch_size=len(y) * run.replicas), epochs=1)
    return lambda: run.step(next(batches), lambda micro: F.cross_entropy(model(micro.x), micro.y))


def ddp_step(model: nn.Module, x: object, y: Tensor) -> Callable[[], None]:
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
