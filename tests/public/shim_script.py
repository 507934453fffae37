"""A script for accelerate, run with accelerate's import and with ours: prints a loss for every step as JSON."""

import json
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

if sys.argv[1] == "theirs":
    from accelerate import Accelerator
    from accelerate.utils import set_seed
else:
    from unisono.compat.accelerate import Accelerator
    from unisono.compat.accelerate.utils import set_seed


def main(batch_size: int, accumulation: int, processes: int, total_steps: int) -> None:
    set_seed(0)
    settings = {"cpu": True} if sys.argv[1] == "theirs" else {"cpu": True, "replicas": processes}
    accelerator = Accelerator(gradient_accumulation_steps=accumulation, **settings)
    x = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    y = (x.sum(dim=1) > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warm = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    if total_steps:
        warm = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=total_steps)
    train, test = (DataLoader(TensorDataset(x, y), batch_size=size) for size in (batch_size, 7))
    model, optimizer, train, test, warm = accelerator.prepare(model, optimizer, train, test, warm)
    losses = []
    for _ in range(3):
        model.train()
        for inputs, targets in train:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                warm.step()
                optimizer.zero_grad()
        model.eval()
        outputs, labels = [], []
        for inputs, targets in test:
            with torch.no_grad():
                found = accelerator.gather_for_metrics((model(inputs), targets))
            outputs.append(found[0])
            labels.append(found[1])
        losses.append(F.cross_entropy(torch.cat(outputs), torch.cat(labels)).item())
    accelerator.save_state(sys.argv[2])
    weights = [parameter.tolist() for parameter in accelerator.unwrap_model(model).parameters()]
    if accelerator.is_main_process:
        print(json.dumps({"losses": losses, "weights": weights, "lr": warm.get_last_lr()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[3:]))
