"""The same with unisono: the batch is that of all ranks, so the learning rate does not depend on them.

unisono run -n 2 horovod_after.py, or: mpirun -np 2 python horovod_after.py
"""

import torch
from digits import BATCH_SIZE, EPOCHS, Net, datasets
from torch.nn import functional as F

import unisono


def main() -> None:
    run = unisono.Run(seed=0, replicas=8, out="runs/horovod")
    train_set, test_set = datasets()
    model = Net()
    run.prepare(model, torch.optim.Adam(model.parameters(), lr=2e-3))  # 2 ranks had 1e-3 each
    loader = run.loader(train_set, batch_size=2 * BATCH_SIZE)  # and a batch each
    for batch in run.steps(loader, epochs=EPOCHS):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    scores = run.evaluate(test_set, lambda micro: (model(micro.x), micro.y), {"accuracy": unisono.Accuracy()})
    if run.world.is_leader:
        print(f"accuracy {scores['accuracy']:.4f}")
        print(run.fingerprint())


if __name__ == "__main__":
    main()
