"""A script written for Lightning Fabric, as a function that ranks run; only where the import comes from is ours."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from compat.shared import Killed, data
from unisono.compat.fabric import Fabric


def classify(
    transport=None,
    out=None,
    *,
    devices=6,
    accumulation=1,
    epochs=2,
    samples=67,
    kill=lambda fabric: False,  # asked in every turn before backward: whether to end the script here
    habit=0.0,  # how much data depends on the rank, which it should not
    rate_by_hand=False,
    **settings,
):
    """Train with dropout, batch statistics, noise, clipping and schedules; return what must not depend on ranks."""
    if transport is not None:
        settings["transport"] = transport
    if accumulation > 1:
        settings["accumulate_grad_batches"] = accumulation
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=devices, out=out, **settings)
    fabric.launch()
    fabric.seed_everything(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=8)  # in every turn
    train = DataLoader(data(samples), batch_size=3, shuffle=True)
    test = DataLoader(data(23), batch_size=4)
    model, optimizer = fabric.setup(model, optimizer)
    train, test = fabric.setup_dataloaders(train, test)
    each_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    loss = scores = None
    for _ in range(epochs):
        model.train()
        for i, (x, y) in enumerate(train):
            whole = (i + 1) % accumulation == 0
            with fabric.no_backward_sync(model, enabled=not whole):
                x = x + 0.01 * torch.randn_like(x) + habit * fabric.global_rank
                loss = F.cross_entropy(model(x), y) / accumulation
                if kill(fabric):
                    raise Killed
                fabric.backward(loss)
            if whole:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
                warm.step()
        each_epoch.step()
        if rate_by_hand:
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
        model.eval()
        right, summed = 0, 0.0
        for x, y in test:
            with torch.no_grad():
                outputs = model(x)
            right += int((outputs.argmax(dim=1) == y).sum())
            summed += float(F.cross_entropy(outputs, y, reduction="sum"))
        total = fabric.all_reduce(torch.tensor(summed), reduce_op="sum")
        scores = [float(total) / 23, float(fabric.all_gather(right).sum())]
    result = {
        "fingerprint": fabric.unisono.fingerprint(),
        "scores": scores,
        "turns": len(train),
        "lr": optimizer.param_groups[0]["lr"],
        "loss": fabric.last_loss,
        "steps": fabric.completed_steps,
        "processes": fabric.world_size,
    }
    fabric.unisono.close()
    return result


def parts(fabric, samples=24, batch_size=2, **loader):
    """Return model, optimizer and loader, set up."""
    model = nn.Linear(8, 2)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return model, optimizer, fabric.setup_dataloaders(DataLoader(data(samples), batch_size=batch_size, **loader))
