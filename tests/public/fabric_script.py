"""A script for Lightning Fabric, run with Fabric's import and with ours: prints losses and weights as JSON."""

import json
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

if sys.argv[1] == "theirs":
    from lightning_fabric import Fabric
else:
    from unisono.compat.fabric import Fabric


def main(batch_size: int, accumulation: int, processes: int) -> None:
    ours = {} if sys.argv[1] == "theirs" or accumulation == 1 else {"accumulate_grad_batches": accumulation}
    fabric = Fabric(accelerator="cpu", strategy="ddp" if processes > 1 else "auto", devices=processes, **ours)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    x = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    y = (x.sum(dim=1) > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    train, test = (DataLoader(TensorDataset(x, y), batch_size=size) for size in (batch_size, 12))
    train, test = fabric.setup_dataloaders(train, test)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, 1.0, total_iters=5)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    losses = []
    for _ in range(3):
        model.train()
        for i, (inputs, targets) in enumerate(train):
            is_whole = (i + 1) % accumulation == 0
            with fabric.no_backward_sync(model, enabled=not is_whole):
                fabric.backward(F.cross_entropy(model(inputs), targets) / accumulation)
            if is_whole:
                fabric.clip_gradients(model, optimizer, max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
                warm.step()
        decay.step()
        model.eval()
        mean = 0.0
        for inputs, targets in test:
            with torch.no_grad():
                mean += F.cross_entropy(model(inputs), targets).item() / len(test)
        losses.append(fabric.all_reduce(mean).item())
    fabric.save(sys.argv[2], {"model": model, "optimizer": optimizer})
    weights = [parameter.tolist() for parameter in model.parameters()]
    if fabric.is_global_zero:
        lr = optimizer.param_groups[0]["lr"]
        print(json.dumps({"losses": losses, "weights": weights, "lr": [lr], "turns": [len(train), len(test)]}))


if __name__ == "__main__":
    main(*map(int, sys.argv[3:]))
