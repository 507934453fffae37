"""What a worker runs to time models of usual size on a GPU: a plain loop, torch's own DDP, and exact.

In: a device. Out: a JSON file. On a CPU a round takes hours, so no row asks for it there.
"""

import functools
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from unisono.data.datasets import ArrayDataset
from unisono.determinism import devices
from unisono.determinism.switches import set_determinism
from unisono.train.run import Run

PLAIN, DDP = "plain torch", "DDP"
_WARMUP, _TIMED = 3, 10
_CLASSES, _VOCABULARY = 1000, 50_257


class Residual(nn.Module):
    """Two convolutions and a way around them: (n, before, h, w) -> (n, after, h / stride, w / stride)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.around = nn.Identity() if before == after else around

    def forward(self, x: Tensor) -> Tensor:
        """Return what comes out of the block."""
        return F.relu(self.inner(x) + self.around(x))


def resnet18(width: int = 64) -> nn.Module:
    """Return ResNet-18 of He et al., arXiv 1512.03385, table 1: images (n, 3, h, w) -> scores (n, 1000)."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Residual(width, width, 1), Residual(width, width, 1),
    ]  # fmt: skip
    for wide in (2 * width, 4 * width, 8 * width):
        layers += [Residual(wide // 2, wide, 2), Residual(wide, wide, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, _CLASSES))


class Attention(nn.Module):
    """A block of GPT-2: causal attention and two linear layers, (n, length, width) -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what comes out of the block."""
        query, key, value = self.read(self.first(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.join(found)
        left: Tensor = x + self.narrow(F.gelu(self.wide(self.second(x)), approximate="tanh"))
        return left


class GPT2(nn.Module):
    """GPT-2 of Radford et al. (2019), without dropout: tokens (n, length) -> scores (n, words, length)."""

    def __init__(self, layers: int = 12, width: int = 768, length: int = 1024) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Attention(width, max(1, width // 64)) for _ in range(layers)))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of each next token."""
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return F.linear(self.last(self.blocks(x)), self.words.weight).transpose(1, 2)


class GatedCNN(nn.Module):
    """Two gated convolutions over padded texts, 1.2 M parameters: tokens (n, length) -> scores (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(15_000, 64)
        self.convolve = nn.ModuleList(nn.Conv1d(64, 128, 15, 7) for _ in range(2))
        self.classify = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of each text."""
        x = self.words(tokens).transpose(1, 2)
        for convolution in self.convolve:
            x = F.glu(convolution(x), dim=1)
        found: Tensor = self.classify(x.mean(dim=2))
        return found


def _images(count: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, size, size), torch.randint(_CLASSES, (count,))


def _lines(count: int, size: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(_VOCABULARY, (count, size + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _texts(count: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randint(15_000, (count, size)), torch.randint(2, (count,))


Model = tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Tensor, Tensor]], int, int]
LARGE: dict[str, Model] = {
    "ResNet-18, 64 images of 224 x 224": (resnet18, _images, 64, 224),
    "GPT-2 small, 16 rows of 512 tokens": (GPT2, _lines, 16, 512),
    "GatedCNN, 128 texts of 1,000 tokens": (GatedCNN, _texts, 128, 1000),
}
"""Model, its data, samples of a batch, and how large each is."""


def time_large(device: str, replicas: Sequence[int], rounds: int, out: str) -> None:
    """Write of each of `LARGE`, by way, the median seconds of a step and the most memory of a GPU, in bytes.

    The ways: a plain loop, torch's DistributedDataParallel in a world of one, and ``exact`` at each number of replicas;
    SGD with momentum, all under the switches of a run. They take turns, so that what slows the machine slows all alike.
    """
    Path(out).write_text(
        json.dumps({name: time_model(device, model, replicas, rounds) for name, model in LARGE.items()})
    )


def time_model(device: str, model: Model, replicas: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Return of each way the median seconds of a step, and the most bytes of a GPU; 0 on a CPU."""
    set_determinism(1)
    where = devices.named(device)
    where = devices.device_at(where.index or 0, where.type) if devices.is_gpu(where) else where
    build, make, count, size = model
    torch.manual_seed(0)
    x, y = make(count, size)
    ways: dict[str, Callable[[], float]] = {
        PLAIN: functools.partial(_plain, where, build, x, y),
        DDP: functools.partial(_ddp, where, build, x, y),
        **{f"exact, V = {each}": functools.partial(_exact, where, build, x, y, each) for each in replicas},
    }
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            gc.collect()
            if devices.is_gpu(where):
                devices.forget_peak(where)
            taken = way()
            found[name].append((taken, devices.peak_bytes(where) if devices.is_gpu(where) else 0))
    return {
        name: [statistics.median(taken for taken, _ in each), max(peak for _, peak in each)]
        for name, each in found.items()
    }


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)


def _loop(where: torch.device, model: nn.Module, x: Tensor, y: Tensor) -> float:
    optimizer, began = _optimizer(model), 0.0
    x, y = x.to(where), y.to(where)
    for step in range(_WARMUP + _TIMED):
        if step == _WARMUP:
            began = _now(where)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return (_now(where) - began) / _TIMED


def _plain(where: torch.device, build: Callable[[], nn.Module], x: Tensor, y: Tensor) -> float:
    return _loop(where, build().to(where), x, y)


def _ddp(where: torch.device, build: Callable[[], nn.Module], x: Tensor, y: Tensor) -> float:
    with _group(where):
        return _loop(where, DistributedDataParallel(build().to(where)), x, y)


@contextmanager
def _group(where: torch.device) -> Iterator[None]:
    dist.init_process_group(devices.backend_of(where, is_shared=False), store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        gc.collect()  # a group that a model still holds is not ended
        dist.destroy_process_group()


def _exact(where: torch.device, build: Callable[[], nn.Module], x: Tensor, y: Tensor, replicas: int) -> float:
    data = ArrayDataset(x.to(where), y.to(where))
    with Run(seed=0, replicas=replicas, device=str(where)) as run:
        model = build().to(where)
        model, _ = run.prepare(model, _optimizer(model))
        model.train()
        began, last = 0.0, _WARMUP + _TIMED

        def loss(micro: Any) -> Tensor:
            return F.cross_entropy(model(micro.x), micro.y)

        for batch in run.steps(run.loader(data, batch_size=len(x)), epochs=last):
            if batch.step == _WARMUP + 1:
                began = _now(where)
            run.step(batch, loss)
        return (_now(where) - began) / _TIMED


def _now(where: torch.device) -> float:
    if devices.is_gpu(where):
        devices.mark(where).synchronize()
    return time.perf_counter()
