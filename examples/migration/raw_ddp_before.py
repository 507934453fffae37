"""DDP by hand, as many scripts have it: spawn, group, sampler, wrapper, loop, a file from rank 0.

python raw_ddp_before.py
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from digits import BATCH_SIZE, EPOCHS, WORKERS, Net, datasets
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(rank: int, world_size: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    train_set, test_set = datasets()
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=BATCH_SIZE // world_size, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()
    test_sampler = DistributedSampler(test_set, shuffle=False)
    right = torch.zeros(1)
    with torch.no_grad():
        for images, labels in DataLoader(test_set, batch_size=256, sampler=test_sampler):
            right += (model(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(right)
    if rank == 0:
        print(f"accuracy {right.item() / len(test_sampler) / world_size:.4f}")
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(WORKERS, f"{folder}/meeting"), nprocs=WORKERS)
