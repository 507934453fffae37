"""Scripts written for accelerate, as functions that ranks run; only where the import comes from is ours."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from compat.shared import Killed, data
from unisono.compat.accelerate import Accelerator, set_seed


def classify(
    transport=None,
    out=None,
    *,
    replicas=6,
    accumulation=1,
    epochs=2,
    kill=lambda accelerator: False,  # asked in every turn before backward: whether to end the script here
    habit=0.0,  # how much data depends on the rank, which it should not
    after=lambda accelerator, optimizer, epoch: None,  # called at each epoch's end
    load=False,  # whether to call load_state()
    **settings,
):
    """Train with dropout, batch statistics, noise, clipping and a schedule; return what must not depend on ranks."""
    set_seed(3)
    if transport is not None:
        settings["transport"] = transport
    accelerator = Accelerator(gradient_accumulation_steps=accumulation, replicas=replicas, project_dir=out, **settings)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=100)
    train, test = DataLoader(data(), batch_size=3, shuffle=True), DataLoader(data(23), batch_size=4)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    right = torch.tensor([])
    if load:
        accelerator.load_state()
    for epoch in range(epochs):
        model.train()
        for x, y in train:
            with accelerator.accumulate(model):
                x = x + 0.01 * torch.randn_like(x) + habit * accelerator.process_index
                loss = F.cross_entropy(model(x), y)
                if kill(accelerator):
                    raise Killed
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        right = []
        for x, y in test:
            with torch.no_grad():
                guesses, targets = accelerator.gather_for_metrics((model(x).argmax(dim=1), y))
            right.append(guesses == targets)
        right = torch.cat(right)
        after(accelerator, optimizer, epoch)
    result = {
        "fingerprint": accelerator.run.fingerprint(),
        "right": right.tolist(),
        "turns": len(train),
        "lr": schedule.get_last_lr(),
        "loss": accelerator.last_loss,
        "steps": accelerator.completed_steps,
    }
    accelerator.end_training()
    return result


def parts(accelerator, samples=24, batch_size=2, **loader):
    """Return model, optimizer and loader, prepared."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return accelerator.prepare(model, optimizer, DataLoader(data(samples), batch_size=batch_size, **loader))


def main() -> None:
    """Train as a program: rank 1 is killed by SIGKILL, where the marker is not there yet."""
    out, marker = sys.argv[1:]

    def kill(accelerator):
        if accelerator.completed_steps == 6 and accelerator.is_last_process and not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    print(classify(out=out, replicas=2, epochs=1, kill=kill, checkpoint_every=2)["fingerprint"])


if __name__ == "__main__":
    main()
