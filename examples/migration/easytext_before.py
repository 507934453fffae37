"""With easytext: a launcher with three methods, a trainer built in each process, loaders with samplers.

python easytext_before.py (two GPUs)
"""

import torch
from digits import BATCH_SIZE, EPOCHS, Net, datasets
from easytext.distributed import ProcessGroupParameter
from easytext.metrics import AccMetric
from easytext.trainer import Launcher, Trainer
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class DigitsLauncher(Launcher):
    def _init_devices(self):
        return ["cuda:0", "cuda:1"]

    def _init_process_group_parameter(self, rank):
        return None if rank is None else ProcessGroupParameter(port=23456)

    def _start(self, rank, world_size, device):
        train_set, test_set = datasets()
        trainer = Trainer(
            serialize_dir="runs/easytext", num_epoch=EPOCHS, model=Net(), loss=nn.CrossEntropyLoss(),
            metrics=AccMetric(), optimizer_factory=AdamFactory(), lr_scheduler_factory=None, patient=3,
            num_check_point_keep=2, device=device, is_distributed=rank is not None,
        )  # fmt: skip
        trainer.train(*(self.loader(part, rank, world_size) for part in (train_set, test_set)))

    def loader(self, part, rank, world_size):
        sampler = None if rank is None else DistributedSampler(part)
        return DataLoader(part, batch_size=BATCH_SIZE // world_size, sampler=sampler, shuffle=sampler is None)


class AdamFactory:
    def create(self, model):
        return torch.optim.Adam(model.parameters(), lr=1e-3)


if __name__ == "__main__":
    DigitsLauncher()()
