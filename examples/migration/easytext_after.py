"""The same with unisono: one function, on GPUs or CPUs, one process or several.

python easytext_after.py
"""

import torch
from digits import BATCH_SIZE, EPOCHS, WORKERS, Net, datasets
from torch import nn

import unisono
from unisono import callbacks


def main() -> None:
    run = unisono.Run(seed=0, replicas=8, out="runs/easytext", checkpoints=unisono.CheckpointPolicy(keep=2))
    train_set, test_set = datasets()
    model = Net()
    trainer = unisono.Trainer(
        run, model, torch.optim.Adam(model.parameters(), lr=1e-3), loss=nn.CrossEntropyLoss(),
        metrics={"accuracy": unisono.Accuracy(), "f1": unisono.F1(10)},
        callbacks=[callbacks.EarlyStopping("test_accuracy", mode="max", patience=3)],
    )  # fmt: skip
    result = trainer.fit(train_set, epochs=EPOCHS, batch_size=BATCH_SIZE, test_set=test_set)
    if run.world.is_leader:
        print(f"accuracy {result['metrics']['test_accuracy']:.4f}")
        print(result["fingerprint"])


if __name__ == "__main__":
    unisono.launch(main, workers=WORKERS, replicas=8)
