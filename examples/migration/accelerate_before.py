"""With Hugging Face accelerate: prepare, backward, gather_for_metrics, save_state.

accelerate launch --cpu --num_processes 2 accelerate_before.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from digits import BATCH_SIZE, EPOCHS, Net, datasets
from torch.nn import functional as F
from torch.utils.data import DataLoader


def main() -> None:
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    train_set, test_set = datasets()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps = EPOCHS * len(train_set) // BATCH_SIZE
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    loader = DataLoader(train_set, batch_size=BATCH_SIZE // accelerator.num_processes, shuffle=True)
    testing = DataLoader(test_set, batch_size=256)
    model, optimizer, loader, testing, scheduler = accelerator.prepare(model, optimizer, loader, testing, scheduler)
    for _ in range(EPOCHS):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(images), labels))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        accelerator.save_state("state")
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in testing:
            right += int(accelerator.gather_for_metrics(model(images).argmax(dim=1) == labels).sum())
    accelerator.print(f"accuracy {right / len(test_set):.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
