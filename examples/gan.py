"""A generator and a discriminator that learn in turn, and an average of the generator: digits that nobody has written.

    python examples/gan.py

Each batch has two updates, of D and of G; `ema` follows G and has no optimizer. Two workers train; one of them dies by
SIGKILL between D's update and G's, and one worker goes on. The fingerprint, over all three models, is that of one
worker left alone. A linear classifier of real digits judges what `ema` invents: is it the digit that was asked for?
Expect 2 equal fingerprints, with more than 90 % right, in 16 s on 2 cores (32 CPU seconds).
"""

import os
import shutil
import signal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import unisono
from unisono.data.digits import load_digits

NOISE = 16


class Generator(nn.Module):
    """From noise and a digit to an image of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(NOISE + 10, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 128), nn.BatchNorm1d(128),
            nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, noise: Tensor, digits: Tensor) -> Tensor:
        return self.layers(torch.cat([noise, F.one_hot(digits, 10)], 1))


class Discriminator(nn.Module):
    """From an image and a digit to how real the image is as one of that digit."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64 + 10, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 64), nn.LeakyReLU(0.2),
            nn.Dropout(0.3), nn.Linear(64, 1),
        )  # fmt: skip

    def forward(self, images: Tensor, digits: Tensor) -> Tensor:
        return self.layers(torch.cat([images.flatten(1), F.one_hot(digits, 10)], 1))


def main(out: str, deadly: int | None) -> None:
    data = load_digits()
    run = unisono.Run(seed=0, replicas=4, out=out, checkpoint_every=100)
    generator, discriminator = Generator(), Discriminator()
    ema = AveragedModel(generator, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    nets = {"G": generator, "D": discriminator, "ema": ema}
    optimizers = {
        "G": torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
        "D": torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
    }
    schedules = {name: torch.optim.lr_scheduler.LinearLR(optimizers[name], 1.0, 0.1, 900) for name in ("G", "D")}
    run.prepare(nets, optimizers, schedules, clip_norm={"D": 5.0})

    def d_loss(micro) -> Tensor:
        fake = generator(torch.randn(len(micro.y), NOISE), micro.y).detach()
        return F.softplus(-discriminator(micro.x, micro.y)).mean() + F.softplus(discriminator(fake, micro.y)).mean()

    def g_loss(micro) -> Tensor:
        return F.softplus(-discriminator(generator(torch.randn(len(micro.y), NOISE), micro.y), micro.y)).mean()

    loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
    for batch in run.steps(loader, epochs=40):
        run.step(batch, d_loss, update="D")
        if batch.step == deadly and run.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        run.step(batch, g_loss, update="G")
        ema.update_parameters(generator)
    if run.world.is_leader:
        print(f"{run.fingerprint()}: {100 * judge(ema, data):.1f}% right")


def judge(generator: nn.Module, data) -> float:
    """Return how many of 1,000 invented images a linear classifier of real ones takes for the digit asked for."""
    classify = nn.Linear(64, 10)
    optimizer = torch.optim.Adam(classify.parameters(), lr=0.05)
    images, labels = torch.from_numpy(data.train_images).flatten(1), torch.from_numpy(data.train_labels)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(classify(images), labels).backward()
        optimizer.step()
    digits = torch.arange(1000) % 10
    with torch.no_grad():
        return (classify(generator.eval()(torch.randn(1000, NOISE), digits)).argmax(1) == digits).float().mean().item()


if __name__ == "__main__":
    for name in ("runs/gan-calm", "runs/gan-killed"):
        shutil.rmtree(name, ignore_errors=True)
    unisono.launch(main, "runs/gan-calm", None, workers=1)
    try:
        unisono.launch(main, "runs/gan-killed", 250, workers=2)
    except unisono.WorkerFailed as failure:
        print(f"rank {failure.rank} was killed")
    unisono.launch(main, "runs/gan-killed", None, workers=1)
