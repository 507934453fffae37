"""With Lightning: a module with its steps, and a trainer.

python lightning_before.py
"""

import lightning
import torch
from digits import BATCH_SIZE, EPOCHS, WORKERS, Net, datasets
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss = Net(), nn.CrossEntropyLoss()

    def training_step(self, batch, _):
        images, labels = batch
        return self.loss(self.net(images), labels)

    def validation_step(self, batch, _):
        images, labels = batch
        scores = self.net(images)
        self.log("val_loss", self.loss(scores, labels), sync_dist=True)
        self.log("val_accuracy", (scores.argmax(dim=1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    lightning.seed_everything(0)
    train_set, test_set = datasets()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=WORKERS, strategy="ddp", max_epochs=EPOCHS, gradient_clip_val=1.0,
        callbacks=[EarlyStopping("val_loss", patience=3), ModelCheckpoint(monitor="val_accuracy", mode="max")],
    )  # fmt: skip
    trainer.fit(
        Digits(),
        DataLoader(train_set, batch_size=BATCH_SIZE // WORKERS, shuffle=True),
        DataLoader(test_set, batch_size=256),
    )


if __name__ == "__main__":
    main()
