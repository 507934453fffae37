"""A script written for accelerate, with its import line changed: the same bits on any number of workers.

Run it with `python`, `unisono run -n 4`, or torchrun. Expect a test accuracy above 0.9 and one fingerprint for every
way to start it, in 10 s on 2 cores.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from unisono.compat.accelerate import Accelerator, set_seed  # in place of: from accelerate import ...
from unisono.data.digits import load_digits


def main(epochs: int = 4, **settings: object) -> tuple[str, float]:
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2, **({"replicas": 4} | settings))
    data = load_digits()
    images = [torch.as_tensor(part) for part in (data.train_images, data.test_images)]
    labels = [torch.as_tensor(part) for part in (data.train_labels, data.test_labels)]
    train = DataLoader(TensorDataset(images[0], labels[0]), batch_size=8, shuffle=True)
    test = DataLoader(TensorDataset(images[1], labels[1]), batch_size=64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=epochs * len(train))
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)

    share = 0.0
    for epoch in range(epochs):
        model.train()
        for x, y in train:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        right = 0
        for x, y in test:
            with torch.no_grad():
                guesses = model(x).argmax(dim=1)
            guesses, targets = accelerator.gather_for_metrics((guesses, y))
            right += int((guesses == targets).sum())
        share = right / len(data.test_labels)
        accelerator.print(f"epoch {epoch + 1}  loss {accelerator.last_loss:.3f}  {100 * share:.1f}% right")
    return accelerator.run.fingerprint(), share


if __name__ == "__main__":
    print(main()[0])
