"""Your own training loop, made exact. Run it with `python`, `unisono run -n 4`, torchrun, srun or mpirun.

Expect a loss of 1.675 in the last step and the same fingerprint for every way to start it, also that of `trainer.py`,
in 8 s on 2 cores (16 CPU seconds).
"""

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.digits import load_digits


def main() -> None:
    run = unisono.Run(seed=0, replicas=8, out="runs/own-loop")  # finds the other workers; continues what is in out
    data = load_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
    for batch in run.steps(loader, epochs=3):
        loss = run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        if run.world.is_leader and batch.step % 23 == 0:
            print(f"step {batch.step}  loss {loss:.3f}")
    if run.world.is_leader:
        print(run.fingerprint())


if __name__ == "__main__":
    unisono.launch(main, workers="auto", replicas=8)
