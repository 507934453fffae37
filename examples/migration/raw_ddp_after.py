"""The same with unisono: no group, no sampler, no wrapper; it resumes, and the number of workers changes no bit.

python raw_ddp_after.py
"""

import torch
from digits import BATCH_SIZE, EPOCHS, WORKERS, Net, datasets
from torch.nn import functional as F

import unisono


def main() -> None:
    run = unisono.Run(seed=0, replicas=8, out="runs/raw-ddp")
    train_set, test_set = datasets()
    model = Net()
    run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    loader = run.loader(train_set, batch_size=BATCH_SIZE)
    for batch in run.steps(loader, epochs=EPOCHS):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    scores = run.evaluate(test_set, lambda micro: (model(micro.x), micro.y), {"accuracy": unisono.Accuracy()})
    if run.world.is_leader:
        print(f"accuracy {scores['accuracy']:.4f}")
        print(run.fingerprint())


if __name__ == "__main__":
    unisono.launch(main, workers=WORKERS, replicas=8)
