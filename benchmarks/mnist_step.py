"""What a micro-batch of MNIST costs: the tutorial's SimpleCNN as written, and the recipe's, in turn in one process.

    python benchmarks/mnist_step.py [--rounds 60] [--quick] [--out DIR]

Forward and backward on one thread, CPU milliseconds. ``as written`` is measured with freed memory kept, which it does
not have by itself: the ratio is of the kernels alone.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from harness import in_turn, parser_of, rounds_of, save, slug
from results import Result
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent / "baselines"))
import jobs
from unisono.determinism.switches import set_determinism
from unisono.recipes.kernels import drop, patch_conv
from unisono.recipes.mnist import SimpleCNN
from unisono.recipes.speed import channels_last
from unisono.system.memory import keep_freed_memory

SAMPLES = 64


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


def milliseconds(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, micro: int) -> float:
    began = time.process_time()
    for x, y in zip(images.split(micro), labels.split(micro), strict=True):
        model.zero_grad()
        F.nll_loss(model(x.clone()), y).backward()
    return (time.process_time() - began) * 1e3


def main() -> None:
    given = parser_of(__doc__, rounds=60).parse_args()
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
    found = []
    for micro in (64, 16):
        ways = {name: partial(milliseconds, model, images, labels, micro) for name, model in models.items()}
        times = in_turn(ways, rounds_of(given), warm_up=1 if given.quick else 3)
        for name, taken in times.items():
            found.append(
                Result.of(
                    slug(f"{name} {micro}"),
                    taken,
                    against=times["as written"],
                    peer="the tutorial's as written",
                    unit="ms",
                    topic="Steps",
                    settings={"images": SAMPLES, "micro-batch": micro},
                    what=f"SimpleCNN, forward and backward, CPU time: {name}",
                )
            )
    save(given, found)


if __name__ == "__main__":
    main()
