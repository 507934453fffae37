"""Unequal machines, one result: the faster worker runs more replicas.

    python examples/uneven_shares.py

With plain data parallelism all workers wait for the slowest, or the result changes. Here only the placement changes.
Expect 2 equal fingerprints, of both runs, in 15 s on 2 cores (29 CPU seconds).
"""

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.digits import load_digits


def main(shares: tuple[float, ...]) -> None:
    run = unisono.Run(seed=0, replicas=8, strategy=unisono.strategy("exact", shares=shares))
    data = load_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
    for batch in run.steps(loader, epochs=2):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    if run.world.is_leader:
        hosted = [len(replicas) for replicas in run.placement]
        print(f"shares {shares}, replicas {hosted}: {run.fingerprint()}")


if __name__ == "__main__":
    for shares in ((1, 1), (3, 1)):
        unisono.launch(main, shares, workers=len(shares))
