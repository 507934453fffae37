"""The same with unisono; torchrun may still start it: accumulation is `replicas`, the run writes checkpoints.

torchrun --standalone --nproc-per-node 2 torchrun_after.py, or: unisono run -n 2 torchrun_after.py
"""

import torch
from digits import BATCH_SIZE, EPOCHS, Net, datasets
from torch.nn import functional as F

import unisono


def main() -> None:
    run = unisono.Run(seed=0, replicas=4, clip_norm=1.0, out="runs/torchrun", checkpoint_every=50)
    train_set, _ = datasets()
    model = Net()
    run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    loader = run.loader(train_set, batch_size=BATCH_SIZE)
    for batch in run.steps(loader, epochs=EPOCHS):
        loss = run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        if run.world.is_leader and batch.step % len(loader) == 0:
            print(f"epoch {batch.epoch + 1}  loss {loss:.4f}")
    if run.world.is_leader:
        print(run.fingerprint())


if __name__ == "__main__":
    main()
