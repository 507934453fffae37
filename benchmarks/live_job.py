"""What `live_kills.py` disturbs: three small trainings that evaluate, save and draw random numbers.

``live_job.py NAME OUT STEPS``: ``digits``: the recipe's network (BatchNorm, dropout), Adam; ``cnn``: SimpleCNN behind a
BatchNorm, momentum, clipping; ``transformer``: an encoder with dropout, Adam with a schedule, data by a process of its
own, checkpoints that all ranks write.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from unisono.data.sets.digits import load_digits
from unisono.metrics.base import Accuracy
from unisono.recipes.digits import DigitsCNN
from unisono.recipes.mnist import SimpleCNN

JOBS = ("digits", "cnn", "transformer")
REPLICAS, EVERY, EVALUATED = 8, 6, 8
WORDS, LENGTH = 40, 8


class Encoder(nn.Module):
    """Says which of two kinds of token is more frequent in a sequence: (n, LENGTH) -> (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.embed, self.layers = nn.Embedding(WORDS, 32), nn.TransformerEncoder(layer, 1)
        self.classify = nn.Linear(32, 2)

    def forward(self, words: Tensor) -> Tensor:
        """Return class scores."""
        scores: Tensor = self.classify(self.layers(self.embed(words)).mean(1))
        return scores


def images(seed: int, count: int) -> unisono.ArrayDataset:
    """Return invented pictures of 28x28 pixels, each with the brightest of ten rows as its label."""
    pixels = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
    return unisono.ArrayDataset(pixels, pixels[:, 0, :10].sum(2).argmax(1))


def sequences(seed: int, count: int) -> unisono.ArrayDataset:
    """Return invented sequences of tokens."""
    words = torch.randint(0, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    return unisono.ArrayDataset(words, (words < WORDS // 2).sum(1).gt(LENGTH // 2).long())


def parts(name: str) -> tuple[nn.Module, unisono.ArrayDataset, unisono.ArrayDataset, int]:
    """Return model, training and test samples, and samples of a batch."""
    if name == "digits":
        found = load_digits()
        train = unisono.ArrayDataset(found.train_images, found.train_labels)
        return DigitsCNN(), train, unisono.ArrayDataset(found.test_images, found.test_labels), 32
    if name == "cnn":
        return nn.Sequential(nn.BatchNorm2d(1), SimpleCNN()), images(1, 512), images(2, 64), 16
    return Encoder(), sequences(1, 1024), sequences(2, 128), 16


def train(name: str, out: str, steps: int) -> None:
    """Train to the end."""
    torch.manual_seed(0)
    policy = unisono.CheckpointPolicy(share_from_bytes=0) if name == "transformer" else None
    with unisono.Run(seed=5, replicas=REPLICAS, out=out, checkpoint_every=EVERY, checkpoints=policy,
                     clip_norm=1.0 if name == "cnn" else None) as run:  # fmt: skip
        model, samples, tests, batch_size = parts(name)
        scheduler = None
        if name == "cnn":
            optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        else:
            optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        model, optimizer = run.prepare(model, optimizer, scheduler)
        loader = run.loader(samples, batch_size=batch_size, num_workers=int(name == "transformer"))
        for batch in run.steps(loader, epochs=10**6, max_steps=steps):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if batch.step % EVALUATED == 0:
                run.record(run.evaluate(tests, lambda micro: (model(micro.x), micro.y), {"accuracy": Accuracy()}))


if __name__ == "__main__":
    train(sys.argv[1], str(Path(sys.argv[2])), int(sys.argv[3]))
