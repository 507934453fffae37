"""The same with unisono's trainer: the model stays a plain module, scores are counts and not means of means.

python lightning_after.py
"""

import torch
from digits import BATCH_SIZE, EPOCHS, WORKERS, Net, datasets
from torch import nn

import unisono
from unisono import callbacks


def main() -> None:
    run = unisono.Run(
        seed=0, replicas=8, clip_norm=1.0, out="runs/lightning",
        checkpoints=unisono.CheckpointPolicy(best="test_accuracy"),
    )  # fmt: skip
    train_set, test_set = datasets()
    model = Net()
    trainer = unisono.Trainer(
        run, model, torch.optim.Adam(model.parameters(), lr=1e-3), loss=nn.CrossEntropyLoss(),
        callbacks=[callbacks.EarlyStopping("test_loss", patience=3)],
    )  # fmt: skip
    result = trainer.fit(train_set, epochs=EPOCHS, batch_size=BATCH_SIZE, test_set=test_set)
    if run.world.is_leader:
        print(f"accuracy {result['metrics']['test_accuracy']:.4f}")
        print(result["fingerprint"])


if __name__ == "__main__":
    unisono.launch(main, workers=WORKERS, replicas=8)
