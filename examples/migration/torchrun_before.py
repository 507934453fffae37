"""A script for torchrun, with what such scripts grow: local rank, accumulation, a checkpoint to resume from.

torchrun --standalone --nproc-per-node 2 torchrun_before.py
"""

import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from digits import BATCH_SIZE, EPOCHS, Net, datasets
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

ACCUMULATE = 2
CHECKPOINT = Path("checkpoint.pt")


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    train_set, _ = datasets()
    model = DistributedDataParallel(Net().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, map_location=device)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=BATCH_SIZE // dist.get_world_size() // ACCUMULATE, sampler=sampler)
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for number, (images, labels) in enumerate(loader, start=1):
            is_update = number % ACCUMULATE == 0 or number == len(loader)
            with nullcontext() if is_update else model.no_sync():
                loss = F.cross_entropy(model(images.to(device)), labels.to(device))
                (loss / ACCUMULATE).backward()
            if is_update:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        if dist.get_rank() == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, CHECKPOINT)
            print(f"epoch {epoch + 1}  loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
