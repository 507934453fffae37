"""What a micro-batch of MNIST costs: the tutorial's SimpleCNN as written, and the recipe's, in turn in one process.

    python benchmarks/mnist_step.py

Forward and backward on one thread, CPU milliseconds: least and median of the rounds, and the median of the ratios of
neighbours. ``as written`` is measured with freed memory kept, which it does not have by itself: the ratio is of the
kernels alone.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent / "baselines"))
import jobs
from unisono.determinism.switches import set_determinism
from unisono.recipes.kernels import drop, patch_conv
from unisono.recipes.mnist import SimpleCNN
from unisono.recipes.speed import channels_last
from unisono.system.memory import keep_freed_memory

ROUNDS, SAMPLES = 60, 64


class Only(jobs.SimpleCNN):
    """The tutorial's network with one of the changes."""

    def __init__(self, *, has_patches: bool, has_bytes: bool) -> None:
        super().__init__()
        self.has_patches, self.has_bytes = has_patches, has_bytes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities."""
        one: Callable[..., torch.Tensor] = drop if self.has_bytes else F.dropout
        first = patch_conv(x, self.conv1.weight, self.conv1.bias) if self.has_patches else self.conv1(x)
        x = F.relu(F.max_pool2d(first, 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = one(F.relu(self.fc1(one(x.flatten(1), 0.25, True))), 0.5, True)
        return F.log_softmax(self.fc2(x), dim=1)


def seconds(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, micro: int) -> float:
    began = time.process_time()
    for x, y in zip(images.split(micro), labels.split(micro), strict=True):
        model.zero_grad()
        F.nll_loss(model(x.clone()), y).backward()
    return time.process_time() - began


def main() -> None:
    keep_freed_memory()
    set_determinism(1)
    models: dict[str, nn.Module] = {
        "as written": jobs.SimpleCNN(),
        "channels-last": channels_last(Only(has_patches=False, has_bytes=False)),
        "channels-last, patches": channels_last(Only(has_patches=True, has_bytes=False)),
        "channels-last, dropout by bytes": channels_last(Only(has_patches=False, has_bytes=True)),
        "the recipe's: all three": channels_last(SimpleCNN()),
    }
    images, labels = torch.randn(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))
    print(f"| {SAMPLES} images, CPU ms | micro-batch | least | median | times as fast |\n|---|---|---|---|---|")
    for micro in (64, 16):
        taken: dict[str, list[float]] = {name: [] for name in models}
        for number in range(-3, ROUNDS):
            for name, model in models.items():
                found = seconds(model, images, labels, micro)
                if number >= 0:
                    taken[name].append(1000 * found)
        for name, found_ms in taken.items():
            ratio = statistics.median(a / b for a, b in zip(taken["as written"], found_ms, strict=True))
            print(f"| {name} | {micro} | {min(found_ms):.1f} | {statistics.median(found_ms):.1f} | {ratio:.2f} |")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
