"""A step of models that are far too large for this machine, on the test device without numbers: shapes alone.

What would be read from the device is 0. A program for a process of its own.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import devices
import unisono
from unisono.strategies import base
from unisono.train import score

SIZES = {"one block": (1, 64, 3.2e6), "GPT-2 small": (12, 768, 1.2e8), "GPT-3 13B": (40, 5120, 1.2e10)}
"""Layers, width, and fewer parameters than there are."""
VOCABULARY, LENGTH = 50257, 64


class Block(nn.Module):
    """Attention and two linear layers: (n, t, d) -> (n, t, d)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.after = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what comes out of the block."""
        query, key, value = self.queries(self.first(x)).split(self.width, dim=-1)
        x = x + self.after(torch.softmax(query @ key.transpose(1, 2), dim=-1) @ value)
        found: Tensor = x + self.narrow(F.gelu(self.wide(self.second(x))))
        return found


def gpt(layers: int, width: int) -> nn.Module:
    """Return a model on the device of torch's that has no memory."""
    with torch.device("meta"):
        blocks = [Block(width) for _ in range(layers)]
        return nn.Sequential(nn.Embedding(VOCABULARY, width), *blocks, nn.Linear(width, VOCABULARY))


def steps(_: None, name: str, replicas: list[int]) -> dict[str, Any]:
    """Return the size of a model, and by replicas the waits and launches of its second step."""
    devices.install()
    devices.MODULE.is_hollow = True
    score.fingerprint = base.checkpoint_format.fingerprint = lambda *_: ""  # nothing to hash, and too much of it
    model = gpt(*SIZES[name][:2]).to_empty(device=devices.KIND)
    found: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    tokens = torch.randint(VOCABULARY, (2 * max(replicas), LENGTH + 1))
    for count in replicas:
        found[str(count)] = _second_step(
            model, unisono.ArrayDataset(tokens[: 2 * count, :-1], tokens[: 2 * count, 1:]), count
        )
    return found


def _second_step(model: nn.Module, data: Any, replicas: int) -> list[int]:
    with unisono.Run(seed=3, replicas=replicas, device=devices.KIND) as run:
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=True))

        def loss(micro: Any) -> Tensor:
            return F.cross_entropy(front(micro.x).flatten(0, 1), micro.y.flatten())

        counted = [0, 0]
        for batch in run.steps(run.loader(data, batch_size=2 * replicas), epochs=2):
            before = [devices.counted[what] for what in ("waits", "launches")]
            run.step(batch, loss)
            counted = [devices.counted[what] - was for what, was in zip(("waits", "launches"), before, strict=True)]
    model.zero_grad()
    return counted
