"""The same two jobs with Lightning.

torchrun --nproc-per-node 2 benchmarks/baselines/with_lightning.py imdb --data ARCHIVE --epochs 1
"""

import json
import time

import lightning
import torch
from ddp import arguments
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from jobs import job


class Module(lightning.LightningModule):
    """A job as Lightning wants it."""

    def __init__(self, work) -> None:
        super().__init__()
        self.work, self.model = work, work.model

    def training_step(self, batch, _):
        target, x = batch if self.work.swap else batch[::-1]
        return self.work.loss(self.model(x), target)

    def configure_optimizers(self):
        return self.work.optimizer(self.parameters())

    def on_train_epoch_start(self) -> None:
        self.started, self.cpu_started = time.perf_counter(), time.process_time()

    def on_validation_epoch_start(self) -> None:
        self.counts = torch.zeros(2)

    def validation_step(self, batch, _) -> None:
        target, x = batch if self.work.swap else batch[::-1]
        self.counts += torch.tensor([(self.model(x).argmax(dim=1) == target).sum(), len(target)])

    def on_validation_epoch_end(self) -> None:
        right, seen = self.all_gather(self.counts).reshape(-1, 2).sum(dim=0).tolist()
        if self.trainer.is_global_zero and hasattr(self, "started"):
            # Lightning validates before it ends the epoch.
            train_s = self.validated - self.started
            line = {
                "epoch": self.current_epoch + 1, "train_s": train_s,
                "samples_per_s": len(self.work.train_set) / train_s, "accuracy": right / seen, "cpu_s": self.cpu_s,
            }  # fmt: skip
            print(json.dumps(line), flush=True)

    def on_validation_start(self) -> None:
        self.validated, self.cpu_s = time.perf_counter(), time.process_time() - self.cpu_started


def main() -> None:
    given = arguments()
    work = job(given.job, given.data, limit=given.limit, tokenised=given.tokenised, seed=given.seed)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"), max_epochs=given.epochs,
        gradient_clip_val=work.clip, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(
        Module(work),
        DataLoader(work.train_set, batch_size=work.per_rank, shuffle=True, collate_fn=work.collate),
        DataLoader(work.test_set, batch_size=128, collate_fn=work.collate),
    )


if __name__ == "__main__":
    main()
