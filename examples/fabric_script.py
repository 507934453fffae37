"""A script written for Lightning Fabric, with its import line changed: the same bits on any number of workers.

Run it with `python`, `unisono run -n 4`, or torchrun. Expect a test accuracy above 0.9 and one fingerprint for every
way to start it, in 10 s on 2 cores.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from unisono.compat.fabric import Fabric  # in place of: from lightning.fabric import Fabric
from unisono.data.digits import load_digits


def main(epochs: int = 4, **settings: object) -> tuple[str, float]:
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=4, **settings)
    fabric.launch()
    fabric.seed_everything(0)
    data = load_digits()
    images = [torch.as_tensor(part) for part in (data.train_images, data.test_images)]
    labels = [torch.as_tensor(part) for part in (data.train_labels, data.test_labels)]
    train = DataLoader(TensorDataset(images[0], labels[0]), batch_size=16, shuffle=True)
    test = DataLoader(TensorDataset(images[1], labels[1]), batch_size=64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    train, test = fabric.setup_dataloaders(train, test)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

    share = 0.0
    for epoch in range(epochs):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            fabric.backward(F.cross_entropy(model(x), y))
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
        schedule.step()
        model.eval()
        right = torch.tensor(0)
        for x, y in test:
            with torch.no_grad():
                right += (model(x).argmax(dim=1) == y).sum()
        share = float(fabric.all_reduce(right, reduce_op="sum")) / len(data.test_labels)
        fabric.print(f"epoch {epoch + 1}  loss {fabric.last_loss:.3f}  {100 * share:.1f}% right")
    return fabric.unisono.fingerprint(), share


if __name__ == "__main__":
    print(main()[0])
