"""A small job for `test_live`."""

import torch
from torch.nn import functional as F

import unisono


def train(weight=lambda run: 1.0):
    """Train a linear model; the loss is multiplied by `weight`."""
    draw = torch.Generator().manual_seed(3)
    data = torch.utils.data.TensorDataset(torch.randn(96, 6, generator=draw), torch.arange(96) % 4)
    with unisono.Run(seed=2, replicas=6, out="run") as run:
        net, _ = run.prepare(net := torch.nn.Linear(6, 4), torch.optim.Adam(net.parameters()))
        for batch in run.steps(run.loader(data, batch_size=24), epochs=60):
            run.step(batch, lambda micro: weight(run) * F.cross_entropy(net(micro.x), micro.y))


if __name__ == "__main__":
    train()
