"""The job of proof_picture.py: a small network on digits, told from outside how it moves gradients and where it dies.

    unisono run -n N benchmarks/proof_job.py --out DIR [--strategy ddp] [--die-at STEP]

The README's network. Under ``ddp`` a process computes one micro-batch, so the number of processes decides masks and the
order of additions, as it does in a DDP script.
"""

import argparse
import os
import signal

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.sets.digits import load_digits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--strategy", default="exact")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--die-at", type=int, metavar="STEP", help="SIGKILL the last rank in the middle of this step.")
    given = parser.parse_args()
    replicas = 8 if given.strategy == "exact" else None
    run = unisono.Run(seed=0, replicas=replicas, out=given.out, strategy=given.strategy, checkpoint_every=10)
    data = load_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    model, _ = run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
    for batch in run.steps(loader, epochs=given.epochs):

        def loss(micro, step=batch.step):
            if step == given.die_at and run.world.rank == run.world.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return F.cross_entropy(model(micro.x), micro.y)

        run.step(batch, loss)
    run.close()


if __name__ == "__main__":
    main()
