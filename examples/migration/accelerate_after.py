"""The same with unisono: one optimizer step is one schedule step, and the run saves the state.

unisono run -n 2 accelerate_after.py
"""

import torch
from digits import BATCH_SIZE, EPOCHS, Net, datasets
from torch.nn import functional as F

import unisono


def main() -> None:
    run = unisono.Run(seed=0, replicas=8, clip_norm=1.0, out="runs/accelerate")
    train_set, test_set = datasets()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = run.loader(train_set, batch_size=BATCH_SIZE)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=EPOCHS * len(loader))
    model, optimizer, scheduler = run.prepare(model, optimizer, scheduler)
    for batch in run.steps(loader, epochs=EPOCHS):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    scores = run.evaluate(test_set, lambda micro: (model(micro.x), micro.y), {"accuracy": unisono.Accuracy()})
    if run.world.is_leader:
        print(f"accuracy {scores['accuracy']:.4f}")
        print(run.fingerprint())


if __name__ == "__main__":
    main()
