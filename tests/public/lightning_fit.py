"""Lightning: fit with DDP on two ranks; whole and broken numbers are logged with ``sync_dist=True``."""

import sys
import warnings

import pytorch_lightning as lightning
import torch
from recorded import leave, record
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """A small classifier that logs in all ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self.layers(x), y)
        self.log("train_loss", loss, sync_dist=True, on_step=False, on_epoch=True)
        self.log("samples", torch.tensor(len(x)), sync_dist=True, reduce_fx="mean")
        self.log("most", float(self.global_rank), sync_dist=True, reduce_fx="max")
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        right = (self.layers(x).argmax(1) == y).sum()
        self.log("right", right, sync_dist=True, reduce_fx="sum")
        self.log("mean_right", right, sync_dist=True)  # an integer: its average over the ranks

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main(folder: str) -> None:
    """Train an epoch, validate, and gather."""
    warnings.simplefilter("ignore")
    lightning.seed_everything(1, verbose=False)
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(40, 8, generator=draw)
    data = TensorDataset(x, x[:, :3].argmax(1))
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, use_distributed_sampler=True, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(model, DataLoader(data, batch_size=5, shuffle=True), DataLoader(data, batch_size=10))
    gathered = trainer.strategy.all_gather(torch.tensor([float(trainer.global_rank)]))
    whole = trainer.strategy.reduce(torch.tensor([trainer.global_rank + 2, -7]), reduce_op="mean")
    record(folder, model, {name: float(value) for name, value in trainer.callback_metrics.items()}, gathered, whole)


if __name__ == "__main__":
    main(sys.argv[1])
    leave()
